"""A bank in memory: what prediction needs, as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from workers.errors import BankError, DataError
from workers.modeling.luca import Parameters
from workers.modeling.luca_settings import Flow
from workers.modeling.pooling import PooledStatistics
from workers.modeling.statistics import TaskStatistics
from workers.modeling.whitening import Whitening

Objective = Literal["local", "unified"]


@dataclass(frozen=True)
class TaskModule:
    """One task's module.

    Attributes:
        name: Name of the task.
        classes: Its classes as indices into the bank's class names; the order of head rows and of
            the rows of the task's statistics.
        module: LuCA parameters.
        head: Cosine rows [c, d] of the task's classes (objective "local"); None for "unified".
        scale: Scale of the cosines, []; None for "unified".

    Raises:
        BankError: There is no class, or one stands twice.
    """

    name: str
    classes: tuple[int, ...]
    module: Parameters
    head: Tensor | None = None
    scale: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.classes:
            raise BankError(f"task {self.name!r} has no classes.")
        if len(set(self.classes)) != len(self.classes) or min(self.classes) < 0:
            raise BankError(
                f"task {self.name!r} names the classes {list(self.classes)}; distinct numbers from 0 are needed."
            )

    @cached_property
    def last_class(self) -> int:
        """The largest class index."""
        return max(self.classes)

    @cached_property
    def head_shape(self) -> tuple[int, ...] | None:
        """Shape of the task's own head where it has one with a scale."""
        return None if self.head is None or self.scale is None else tuple(self.head.shape)


@dataclass(frozen=True)
class BankTensors:
    """Everything a prediction is made from.

    Attributes:
        width: Feature width d.
        class_names: Names of all classes seen.
        flow: LuCA flow of the modules.
        objective: "local": each task has its own head; "unified": one head over all classes.
        tasks: Modules in the order they were learned.
        head: Unified head [C, d], else None.
        scale: Scale of the unified head, [], else None.
        whitening: Applied to features before modules and routers, or None.
        statistics: Router statistics, one a task in the same order (may be empty for routers that
            need none).
        pool: The sum of all tasks' statistics where it is at hand; takes their place.
    """

    width: int
    class_names: tuple[str, ...]
    flow: Flow
    objective: Objective
    tasks: tuple[TaskModule, ...]
    head: Tensor | None = None
    scale: Tensor | None = None
    whitening: Whitening | None = None
    statistics: tuple[TaskStatistics, ...] = ()
    pool: PooledStatistics | None = None

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BankError("the bank holds no task; learn one before predicting.")
        for task in self.tasks:
            _check_task(task, self)
        if self.objective == "unified":
            if self.head is None or self.scale is None:
                raise BankError("a bank with objective 'unified' needs its shared head and scale.")
            if self.head.shape != (len(self.class_names), self.width):
                raise BankError(
                    f"the shared head has shape {tuple(self.head.shape)}; "
                    f"{(len(self.class_names), self.width)} is needed for "
                    f"{len(self.class_names)} classes."
                )
        if self.whitening is not None and self.whitening.width != self.width:
            raise BankError(
                f"the bank's whitening is {self.whitening.width} wide, its features {self.width}."
            )
        for task, statistics in zip(self.tasks, self.statistics, strict=False):
            if statistics.width != self.width or statistics.classes != len(task.classes):
                raise BankError(
                    f"statistics of task {task.name!r} hold {statistics.classes} classes of width "
                    f"{statistics.width}; {len(task.classes)} of width {self.width} are needed."
                )
        if self.statistics and len(self.statistics) != len(self.tasks):
            raise BankError(
                f"the bank holds {len(self.tasks)} tasks but statistics of {len(self.statistics)}."
            )

    @cached_property
    def slot_task(self) -> Tensor:
        """Task position of every slot, int64 [s]."""
        return torch.tensor(
            [position for position, task in enumerate(self.tasks) for _ in task.classes]
        )

    @cached_property
    def slot_class(self) -> Tensor:
        """Class index of every slot, int64 [s]."""
        return torch.tensor([index for task in self.tasks for index in task.classes])

    @cached_property
    def slot_ranges(self) -> tuple[tuple[int, int], ...]:
        """First slot and one past the last slot of every task."""
        ranges = []
        start = 0
        for task in self.tasks:
            ranges.append((start, start + len(task.classes)))
            start += len(task.classes)
        return tuple(ranges)

    @cached_property
    def pooled(self) -> PooledStatistics:
        """The statistics of all tasks, added up.

        Raises:
            BankError: The bank was loaded without statistics.
        """
        if self.pool is not None:
            return self.pool
        if not self.statistics:
            raise BankError(
                "this router needs the bank's statistics, and the bank was loaded without them; "
                "load them, or choose the router 'entropy'."
            )
        return PooledStatistics.of(self.statistics)

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    def check_features(self, features: Tensor) -> None:
        """Refuses features that this bank cannot read.

        Raises:
            DataError: Not [n, width], or NaN or infinite values.
        """
        if features.ndim != 2 or features.shape[1] != self.width:
            raise DataError(
                f"features have shape {tuple(features.shape)} but the bank was learned on features "
                f"of width {self.width}; use the backbone the bank was made with."
            )
        finite = torch.isfinite(features).all(dim=1)
        if not bool(finite.all()):
            row = int(torch.nonzero(~finite)[0])
            raise DataError(
                f"the feature of sample {row} holds NaN or infinite values; check the backbone's "
                "precision or the feature file."
            )


def _check_task(task: TaskModule, bank: BankTensors) -> None:
    """Whether a task fits its bank; little work, since every version looks at all of its tasks."""
    if task.last_class >= bank.classes:
        raise BankError(
            f"task {task.name!r} names the classes {list(task.classes)}; numbers below {bank.classes} are needed."
        )
    if bank.objective == "local" and task.head_shape != (len(task.classes), bank.width):
        raise BankError(
            f"task {task.name!r} needs its own head of shape {(len(task.classes), bank.width)} and a scale; "
            f"found {task.head_shape or 'none'}."
        )
