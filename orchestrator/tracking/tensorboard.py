"""TensorBoard files under the run's folder (``tensorboard/``): loss of every task, metrics after every task.

Look at them with ``tensorboard --logdir RUNS``.
"""

from __future__ import annotations

import json
import math
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from orchestrator.tracking.events import (
    Event,
    RunStarted,
    StageProgress,
    TaskEvaluated,
    TaskLearned,
    VersionCommitted,
)


class TensorboardTracker:
    """Writes scalars with tensorboardX.  The step is the task's index; a task's losses go by epoch.

    Its file is made with the first thing to write, so that a finished run shown again leaves none.
    """

    def __init__(self, run_dir: str | Path) -> None:
        from tensorboardX import SummaryWriter

        self.folder = Path(run_dir) / "tensorboard"
        self._make = partial(SummaryWriter, str(self.folder), write_to_disk=True)

    @cached_property
    def _writer(self) -> Any:
        return self._make()

    def handle(self, event: Event) -> None:
        """Writes the event's numbers, if it has any."""
        if isinstance(event, RunStarted):
            if event.shown and self.folder.exists():
                return
            text = json.dumps(event.to_json()["experiment"], indent=2, ensure_ascii=False)
            self._writer.add_text("experiment", f"```\n{text}\n```", 0)
        elif isinstance(event, TaskLearned):
            if not event.cached:
                for epoch, loss in enumerate(event.losses, start=1):
                    self._scalar(f"loss/task-{event.task:03d}", loss, epoch)
                self._scalar("learning/seconds", event.seconds, event.task)
            self._scalar("parameters/stored", event.stored_parameters, event.task)
            self._scalar("parameters/nonzero", event.nonzero_parameters, event.task)
        elif isinstance(event, TaskEvaluated):
            for method, metrics in event.metrics.items():
                for metric, value in metrics.items():
                    self._scalar(f"{metric}/{method}", value, event.task)
            self._writer.flush()
        elif isinstance(event, VersionCommitted):
            self._scalar("bank/version", event.version, event.task)
        elif isinstance(event, StageProgress) and event.rate is not None:
            unit = (event.rate_unit or event.unit).replace(" ", "_")
            self._scalar(f"rate/{event.stage}_{unit}_per_second", event.rate, event.done)

    def close(self) -> None:
        """Writes everything out."""
        if "_writer" in self.__dict__:
            self._writer.close()

    def _scalar(self, name: str, value: float | None, step: int) -> None:
        if value is not None and math.isfinite(value):
            self._writer.add_scalar(name, value, step)
