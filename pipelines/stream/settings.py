"""What every scenario can be told, and the plan it answers with."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator
from typing_extensions import Self

from pipelines.sources import Listing, SourceSettings
from workers.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, eq=False)
class TaskPlan:
    """A task as a scenario cuts it, before samples are thinned, scattered or held out.

    Attributes:
        classes: names of the classes the task brings, in stream order.
        train, test: rows of the listing's samples, int64.
    """

    name: str
    domain: str
    classes: tuple[str, ...]
    train: NDArray[np.int64]
    test: NDArray[np.int64]


class ScenarioSettings(Settings):
    """A stream: where samples come from, how tasks are cut, and what is done to their training samples."""

    scenario: str
    source: SourceSettings
    validation_fraction: Fraction = Field(
        default=0.0, description="held out of every class's training samples for choices"
    )
    shots: PositiveInt | None = Field(
        default=None, description="few-shot: training samples kept of each class of a task"
    )
    full_first_task: bool = Field(
        default=False, description="few-shot from the second task on; the first keeps all it has"
    )
    long_tail: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="training samples of the rarest class over those of the most frequent one; classes in "
        "between fall off exponentially, in a seeded order",
    )
    blurry: Fraction = Field(
        default=0.0,
        description="fraction of each class's training samples that is scattered over the other tasks",
    )
    max_train_per_class: PositiveInt | None = Field(
        default=None, description="at most this many training samples of a class of a task"
    )
    max_test_per_class: PositiveInt | None = Field(
        default=None, description="at most this many test samples of a class of a task"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.full_first_task and self.shots is None:
            raise ValueError("full_first_task needs shots, the number of samples of later tasks")
        if self.shots is not None and self.max_train_per_class is not None:
            raise ValueError("shots and max_train_per_class both limit training samples; keep one")
        return self

    @property
    def task_known(self) -> bool:
        """Whether evaluation is told the task of every test sample."""
        return False

    @abstractmethod
    def plan(self, listing: Listing, *, seed: int) -> list[TaskPlan]:
        """Cut the listed samples into tasks.

        Raises:
            DataError: the samples do not make such a stream.
            SettingsError: the settings name classes or domains that the samples do not have, or leave some out.
        """


def task_name(index: int) -> str:
    """The name of a task that the user gave none: "task-01" is the first."""
    return f"task-{index + 1:02d}"


def rows_of(
    listing: Listing,
    *,
    split: str,
    classes: Sequence[str] | None = None,
    domain: str | None = None,
) -> NDArray[np.int64]:
    """Row numbers of the samples of a split, of some classes, of a domain; int64, ascending."""
    groups = listing.rows_by_group.get(split, {})
    chosen = [
        rows
        for name in (groups if classes is None else dict.fromkeys(classes))
        for own, rows in groups.get(name, {}).items()
        if domain is None or own == domain
    ]
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)
