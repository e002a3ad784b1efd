"""A stream as plain data for people: what ``luca stream show`` prints, without touching a backbone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.stream.task import Stream


@dataclass(frozen=True)
class TaskSummary:
    """One row of the table: a task's name, class names and numbers of samples."""

    index: int
    name: str
    domain: str
    classes: tuple[str, ...]
    train: int
    validation: int
    test: int
    digest: str


@dataclass(frozen=True)
class StreamSummary:
    """A stream's tasks and totals.

    Attributes:
        digest: the stream's; equal for everyone with the same files, settings and seed.
    """

    scenario: str
    kind: str
    feature_width: int | None
    classes: tuple[str, ...]
    tasks: tuple[TaskSummary, ...]
    warnings: tuple[str, ...]
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and numbers."""
        return asdict(self)


def describe(stream: Stream) -> StreamSummary:
    """The summary of a stream."""
    tasks = tuple(
        TaskSummary(
            index=task.index,
            name=task.name,
            domain=task.domain,
            classes=tuple(stream.classes[at] for at in task.classes),
            train=len(task.train),
            validation=len(task.validation),
            test=len(task.test),
            digest=stream.definition(task).digest,
        )
        for task in stream.tasks
    )
    return StreamSummary(
        scenario=stream.scenario,
        kind=stream.reader.kind,
        feature_width=stream.feature_width,
        classes=stream.classes,
        tasks=tasks,
        warnings=stream.warnings,
        digest=stream.digest,
    )
