"""What is to be learned, what came of it, and a job made ready for its first step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from workers.errors import DataError, SettingsError
from workers.modeling.batches import TaskFeatures, View, ViewPool, ViewReader, as_order
from workers.modeling.heads import UnifiedHead, class_sums, grow_unified_head, put_rows
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca import Parameters, apply, init_parameters
from workers.modeling.luca_settings import LucaSettings
from workers.modeling.step import Reduce


@dataclass(frozen=True)
class LearnedTask:
    """What learning a task gives; tensors are on the CPU, in the learner's dtype.

    Attributes:
        module: the LuCA module.
        head: rows [c, d] of the task's classes (local), or the whole head [C, d] (unified).
        scale: scalar that multiplies the cosines.
        losses: per epoch, the mean cross-entropy of its steps plus the L1 term at its end.
        steps: optimisation steps made.
        threshold: magnitude below which parameters were set to zero at the end; zero: none were.
        step_losses: float [steps], cross-entropy plus L1 term of every step, when asked for.
    """

    module: Parameters
    head: Tensor
    scale: Tensor
    losses: list[float]
    steps: int
    threshold: float = 0.0
    step_losses: Tensor | None = None

    def cpu(self) -> LearnedTask:
        """The same with all tensors on the CPU."""
        return replace(
            self,
            module={name: value.cpu() for name, value in self.module.items()},
            head=self.head.cpu(),
            scale=self.scale.cpu(),
            step_losses=None if self.step_losses is None else self.step_losses.cpu(),
        )


@dataclass(frozen=True, kw_only=True)
class LearnJob:
    """One task under one setting, for ``learn_many``.

    Attributes:
        views: training views [n, d]; epoch e reads ``views[e % len(views)]``.
        labels: int64 [n]; local: 0..classes-1, unified: global class indices.
        classes: number of the task's classes (local).
        new_classes: global indices of classes that join the head with this task (unified); none when all
            are known, as in another domain of the same classes.
        previous: the head so far (unified); none for the first task.
        luca, learning: settings.
        seed, task_key: the sole sources of randomness.
        test_view: view for class means; none: the first view.
        check: features and labels on which thresholding must not cost accuracy; none: ``test_view``.
        init, init_head: start from these instead of drawing (module; head and scale).
        order: int [epochs, n], mini-batch order instead of drawing one.
    """

    views: Sequence[View]
    labels: Tensor
    luca: LucaSettings
    learning: LearningSettings
    seed: int
    task_key: str
    classes: int = 0
    new_classes: Sequence[int] = ()
    previous: UnifiedHead | None = None
    test_view: View | None = None
    check: tuple[View, Tensor] | None = None
    init: Parameters | None = None
    init_head: UnifiedHead | None = None
    order: Any = None


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where and how precisely a task is learned, and with whom.

    Attributes:
        dtype: float32, or float64 for parity.
        device: where the product runs.
        keep_step_losses: record the loss of every step.
        rank, world: this learner takes every world-th row of each batch, beginning at rank.
        reduce: sums a flat gradient [m, p] over all ranks, in place; needed when world > 1.
    """

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    keep_step_losses: bool = False
    rank: int = 0
    world: int = 1
    reduce: Reduce | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise SettingsError(f"rank {self.rank} is not among the {self.world} ranks")
        if self.world > 1 and self.reduce is None:
            raise SettingsError(f"{self.world} ranks need a function that reduces gradients")


def task_generator(seed: int, task_key: str) -> torch.Generator:
    """A CPU generator whose state depends on (seed, task key) alone."""
    digest = hashlib.sha256(f"{seed}\n{task_key}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


@dataclass(frozen=True)
class PreparedJob:
    """A job made ready: features open, module and head at their start, epoch orders to be drawn."""

    job: LearnJob
    task: TaskFeatures
    module: Parameters
    head: UnifiedHead
    order: Callable[[int], Tensor]

    @classmethod
    def open(cls, job: LearnJob, pool: ViewPool, execution: Execution) -> PreparedJob:
        """Check a job, open its features and draw its start.

        Raises:
            DataError: features or labels do not fit.
            SettingsError: the module does not fit the features.
        """
        unified = job.learning.objective == "unified"
        rows = _unified_rows(job) if unified else job.classes
        if rows < 1:
            raise DataError(f"task {job.task_key!r} has no classes; every task needs at least one")
        task = pool.task(job.views, job.labels, rows, job.test_view)
        if unified:
            _check_labels(job)
        generator = task_generator(job.seed, job.task_key)
        module = _start(job, task.width, generator)
        module = {
            name: value.to(execution.device, execution.dtype) for name, value in module.items()
        }
        head = job.init_head
        if head is None and unified:
            head = grow_unified_head(
                job.previous,
                classes=rows,
                width=task.width,
                generator=generator,
                dtype=execution.dtype,
            )
        elif head is None:
            head = _local_head(job, task, module, generator)
        head = UnifiedHead(
            head.weight.to(execution.device, execution.dtype),
            head.scale.to(execution.device, execution.dtype),
        )
        if job.order is None:
            return cls(job, task, module, head, _drawn_order(task.length, generator))
        order = as_order(job.order, epochs=job.learning.epochs, length=task.length)
        return cls(job, task, module, head, order.__getitem__)

    def shape_key(self) -> object:
        """Equal for jobs that can be learned as one batched product."""
        free = {
            "learning_rate": 1.0,
            "minimum_learning_rate": 0.0,
            "l1": 0.0,
            "threshold": None,
            "threshold_tolerance": 0.0,
            "initial_scale": 1.0,
        }
        shapes = tuple(tuple(value.shape) for value in self.module.values())
        return (
            self.task.length,
            tuple(self.head.weight.shape),
            self.job.luca.flow,
            shapes,
            self.job.learning.model_copy(update=free),
        )


def _start(job: LearnJob, width: int, generator: torch.Generator) -> Parameters:
    drawn = init_parameters(width, job.luca, generator=generator)
    if job.init is None:
        return drawn
    for name, value in drawn.items():
        if name not in job.init or job.init[name].shape != value.shape:
            raise SettingsError(
                f"the given start of task {job.task_key!r} has no {name} of shape "
                f"{tuple(value.shape)}; give a module of the same flow, ranks and width"
            )
    return {name: job.init[name] for name in drawn}


def _local_head(
    job: LearnJob, task: TaskFeatures, module: Parameters, generator: torch.Generator
) -> UnifiedHead:
    """Rows at the unit class means of the fresh module's outputs; random ones for classes without samples."""
    means, present = class_means(module, job.luca, task.test, task.labels, job.classes)
    drawn = torch.randn(job.classes, task.width, generator=generator).to(means)
    rows = torch.nn.functional.normalize(put_rows(drawn, means, present), dim=1)
    return UnifiedHead(rows, torch.tensor(job.learning.initial_scale))


def _drawn_order(length: int, generator: torch.Generator) -> Callable[[int], Tensor]:
    def draw(epoch: int) -> Tensor:  # noqa: ARG001
        return torch.randperm(length, generator=generator)

    return draw


def _seen(job: LearnJob) -> int:
    """Rows that the unified head has before this task."""
    head = job.init_head or job.previous
    return 0 if head is None else head.weight.shape[0]


def _unified_rows(job: LearnJob) -> int:
    return max([_seen(job), *(index + 1 for index in job.new_classes)])


def _check_labels(job: LearnJob) -> None:
    known = {*range(_seen(job)), *job.new_classes}
    found = torch.bincount(job.labels).nonzero().flatten().tolist()
    unknown = sorted(set(found) - known)
    if unknown:
        raise DataError(
            f"task {job.task_key!r} has samples of classes {unknown}, which are neither new nor "
            "known to the head; name them among its classes"
        )


def class_means(
    module: Parameters, luca: LucaSettings, view: ViewReader, labels: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Means [classes, d] of the module's outputs, in its dtype, and which classes have samples."""
    sums = torch.zeros(classes, view.width, dtype=torch.float64, device=labels.device)
    counts = sums.new_zeros(classes)
    for rows, block in view.blocks():
        block_sums, block_counts = class_sums(
            apply(module, block, luca.flow), labels[rows], classes
        )
        sums += block_sums
        counts += block_counts
    means = sums / counts.clamp_min(1.0).unsqueeze(1)
    return means.to(next(iter(module.values())).dtype), counts > 0
