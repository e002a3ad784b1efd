"""Streams of tasks.  A new scenario is one file with settings that ``plan``, and one entry here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipelines.stream.build import build_stream
from pipelines.stream.class_incremental import ClassIncrementalSettings, TaskIncrementalSettings
from pipelines.stream.settings import ScenarioSettings, TaskPlan
from pipelines.stream.task import Stream, Task, TaskDefinition

SCENARIOS: dict[str, type[ScenarioSettings]] = {
    "class_incremental": ClassIncrementalSettings,
    "task_incremental": TaskIncrementalSettings,
}

StreamSettings = Annotated[
    ClassIncrementalSettings | TaskIncrementalSettings, Field(discriminator="scenario")
]

__all__ = [
    "SCENARIOS",
    "ScenarioSettings",
    "Stream",
    "StreamSettings",
    "Task",
    "TaskDefinition",
    "TaskPlan",
    "build_stream",
]
