"""Class-incremental and task-incremental streams: every task brings classes of its own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, PositiveInt, model_validator
from typing_extensions import Self

from pipelines.stream.names import check_names
from pipelines.stream.settings import ScenarioSettings, TaskPlan, rows_of, task_name
from workers.errors import SettingsError
from workers.wording import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipelines.sources import Listing


class ClassIncrementalSettings(ScenarioSettings):
    """Tasks of ``classes_per_task`` classes; the remainder is the last task.

    The published order of seed s is ``numpy.random.RandomState(s).permutation`` over the source's classes.
    """

    scenario: Literal["class_incremental"]
    classes_per_task: PositiveInt
    first_task_classes: PositiveInt | None = Field(
        default=None, description="classes of the first task; left out: as many as in the others"
    )
    class_order: list[str] | None = Field(
        default=None, description="every class name in order, instead of the seed's permutation"
    )
    shuffle_classes: bool | None = Field(
        default=None,
        description="permute the classes by the seed, as when left out; false keeps the source's order",
    )

    @model_validator(mode="after")
    def _one_order(self) -> Self:
        if self.class_order is not None:
            twice = [name for name, count in Counter(self.class_order).items() if count > 1]
            if twice:
                raise ValueError(f"class_order names {twice[0]!r} more than once")
            if self.shuffle_classes:
                raise ValueError("class_order fixes the order; leave shuffle_classes out")
        return self

    def plan(self, listing: Listing, *, seed: int) -> list[TaskPlan]:
        ordered = self._ordered(listing.classes, seed)
        first = self.first_task_classes or self.classes_per_task
        if first > len(ordered):
            field = "first_task_classes" if self.first_task_classes else "classes_per_task"
            raise SettingsError(
                f"stream.{field} is {first}, but the source has {plural(len(ordered), 'class', 'classes')}"
            )
        starts = [0, *range(first, len(ordered), self.classes_per_task)]
        groups = [
            tuple(ordered[start:stop])
            for start, stop in zip(starts, [*starts[1:], len(ordered)], strict=True)
        ]
        return [
            TaskPlan(
                name=task_name(index),
                domain="",
                classes=group,
                train=rows_of(listing, split="train", classes=group),
                test=rows_of(listing, split="test", classes=group),
            )
            for index, group in enumerate(groups)
        ]

    def _ordered(self, classes: Sequence[str], seed: int) -> list[str]:
        if self.class_order is not None:
            check_names(
                "stream.class_order",
                self.class_order,
                classes,
                what="class",
                advice="the folder of a learned class must stay, under its name, as its test samples are scored: put "
                "back what was moved, renamed or deleted",
            )
            ordered = set(self.class_order)
            missing = [name for name in classes if name not in ordered]
            if missing:
                raise SettingsError(
                    f"stream.class_order leaves out {missing[0]!r}"
                    + (f" and {len(missing) - 1} more" if missing[1:] else "")
                    + f"; add {'them' if missing[1:] else 'it'} at the end of stream.class_order, or list the tasks "
                    "you want with scenario: explicit"
                )
            return list(self.class_order)
        if self.shuffle_classes is False:
            return list(classes)
        return permuted(classes, seed)


def permuted(names: Sequence[str], seed: int) -> list[str]:
    """The published order: ``numpy.random.RandomState(seed).permutation`` over the names as the source gives them."""
    return [names[at] for at in np.random.RandomState(seed).permutation(len(names))]


class TaskIncrementalSettings(ClassIncrementalSettings):
    """As class-incremental, but evaluation is told the task of every test sample."""

    scenario: Literal["task_incremental"]  # type: ignore[assignment]

    @property
    def task_known(self) -> bool:
        return True
