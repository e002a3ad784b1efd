"""What the event log says of a run that may have been stopped and continued several times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from orchestrator.tracking.events import (
    Event,
    Notice,
    PartExtracted,
    RunFinished,
    RunStarted,
    TaskEvaluated,
    TaskLearned,
    VersionCommitted,
)


@dataclass(frozen=True)
class TaskFacts:
    """One task: what it brought and what learning it took.  None: not known (yet)."""

    index: int
    name: str
    class_count: int
    class_names: tuple[str, ...] = ()
    train: int | None = None
    validation: int | None = None
    test: int | None = None
    seconds: float | None = None
    last_loss: float | None = None
    stored: int | None = None
    nonzero: int | None = None

    @property
    def density(self) -> float | None:
        """Share of the stored parameters that is not zero."""
        return self.nonzero / self.stored if self.stored and self.nonzero is not None else None


class Story:
    """What the event log says, of a run that may have been stopped and continued several times."""

    def __init__(self) -> None:
        self.start: RunStarted | None = None
        self.finish: RunFinished | None = None
        self.started: datetime | None = None
        self.version: int | None = None
        self.digest: str | None = None
        self.warnings: list[str] = []
        self.skipped: list[str] = []
        self.stages: dict[str, float] = {}
        self.cache: dict[str, int] = {}
        self.images: int | None = None
        self._learned: dict[int, TaskLearned] = {}
        self._last = 0.0

    @property
    def elapsed(self) -> float | None:
        """Seconds from the last start to the last event."""
        return self._last - self.start.time if self.start else None

    def warn(self, message: str) -> None:
        """Keeps a warning for the report."""
        self.warnings.append(message)

    def tell(self, event: Event) -> None:
        """Takes the next event of the log."""
        self._last = event.time
        if isinstance(event, RunStarted):
            self._begin(event)
        elif isinstance(event, PartExtracted):
            self._spend("features", event.seconds)
            key = "hits" if event.cached else "misses"
            self.cache[key] = self.cache.get(key, 0) + 1
            self.images = (self.images or 0) + event.images
            self.skipped += [name for name in event.skipped if name not in self.skipped]
        elif isinstance(event, TaskLearned):
            if not event.cached:
                self._spend("learning", event.seconds)
            if not event.cached or event.task not in self._learned:
                self._learned[event.task] = event
        elif isinstance(event, VersionCommitted):
            self._spend("committing", event.seconds)
            self.version, self.digest = event.version, event.digest
        elif isinstance(event, TaskEvaluated):
            self._spend("evaluation", event.seconds)
        elif isinstance(event, Notice) and event.level == "warning":
            self.warn(event.message)
        elif isinstance(event, RunFinished):
            self.finish = event
            if event.error:
                self.warn(event.error)

    def _begin(self, event: RunStarted) -> None:
        """Times, cache hits and warnings are those of the last time that the run was started."""
        self.start, self.finish = event, None
        self.started = datetime.fromtimestamp(event.time, tz=timezone.utc)
        self.warnings, self.stages, self.cache, self.images = [], {}, {}, None

    def _spend(self, stage: str, seconds: float) -> None:
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds

    def tasks(self, at_least: int) -> tuple[TaskFacts, ...]:
        """The stream's tasks, or nameless ones where the log does not know them."""
        known = list(self.start.tasks) if self.start else []
        number = max(len(known), at_least, 1 + max(self._learned, default=-1))
        return tuple(
            self._task(index, known[index] if index < len(known) else {}) for index in range(number)
        )

    def _task(self, index: int, said: Mapping[str, Any]) -> TaskFacts:
        learned = self._learned.get(index)
        classes = said.get("classes") or ()
        names = () if isinstance(classes, int) else tuple(str(name) for name in classes)
        return TaskFacts(
            index=index,
            name=str(said.get("name") or (learned.name if learned else f"task {index + 1}")),
            class_count=classes if isinstance(classes, int) else len(names),
            class_names=names,
            train=_whole(said.get("train")),
            validation=_whole(said.get("validation")),
            test=_whole(said.get("test")),
            seconds=learned.seconds if learned and not learned.cached else None,
            last_loss=learned.losses[-1] if learned and learned.losses else None,
            stored=learned.stored_parameters if learned else None,
            nonzero=learned.nonzero_parameters if learned else None,
        )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
