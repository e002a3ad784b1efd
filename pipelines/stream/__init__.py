"""Streams of tasks.  A new scenario is one file with settings that ``plan``, and one entry here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipelines.stream.build import build_stream
from pipelines.stream.class_incremental import ClassIncrementalSettings, TaskIncrementalSettings
from pipelines.stream.domain_incremental import DomainIncrementalSettings
from pipelines.stream.explicit import ExplicitSettings
from pipelines.stream.settings import ScenarioSettings, TaskPlan
from pipelines.stream.show import StreamSummary, TaskSummary, describe
from pipelines.stream.task import Stream, Task, TaskDefinition

SCENARIOS: dict[str, type[ScenarioSettings]] = {
    "class_incremental": ClassIncrementalSettings,
    "domain_incremental": DomainIncrementalSettings,
    "task_incremental": TaskIncrementalSettings,
    "explicit": ExplicitSettings,
}

StreamSettings = Annotated[
    ClassIncrementalSettings
    | DomainIncrementalSettings
    | TaskIncrementalSettings
    | ExplicitSettings,
    Field(discriminator="scenario"),
]

__all__ = [
    "SCENARIOS",
    "ScenarioSettings",
    "Stream",
    "StreamSettings",
    "StreamSummary",
    "Task",
    "TaskDefinition",
    "TaskPlan",
    "TaskSummary",
    "build_stream",
    "describe",
]
