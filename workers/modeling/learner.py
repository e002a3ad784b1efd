"""Learning LuCA modules: one task, or many tasks and settings at once, from features in memory or on disk.

Two objectives.  ``unified`` is the published recipe: one cosine head over all classes seen so far, trained along
with the newest module.  ``local`` trains a module with a head over its own task's classes alone, so that tasks do not
depend on each other and may be learned in any order.  All randomness comes from (seed, task key): the result does
not depend on which worker learns, nor on what else it learned.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor
from typing_extensions import Self

from workers.errors import DataError, SettingsError
from workers.modeling.batches import BatchPlan, TaskFeatures, View, ViewPool, ViewReader, as_order
from workers.modeling.heads import (
    UnifiedHead,
    class_sums,
    cosine_logits,
    grow_unified_head,
    put_rows,
)
from workers.modeling.luca import (
    LucaSettings,
    Parameters,
    Part,
    apply,
    init_parameters,
    part_of,
)
from workers.modeling.step import FlatState, Reduce, Step, Update
from workers.settings import Settings

STACK_BYTES = 8 * 2**20


class LearningSettings(Settings):
    """How a module is learned."""

    objective: Literal["local", "unified"] = Field(
        default="local",
        description="local: own classes only, tasks independent; unified: one head over all classes.",
    )
    epochs: PositiveInt = Field(default=20, description="Passes over a task's samples.")
    batch_size: PositiveInt = Field(default=48, description="Samples of one step, over all ranks.")
    learning_rate: PositiveFloat = Field(default=0.025, description="Rate of the first epoch.")
    minimum_learning_rate: NonNegativeFloat = Field(
        default=1e-8, description="Where the cosine schedule would end."
    )
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0, description="Momentum of SGD.")
    l1: NonNegativeFloat = Field(default=5e-4, description="Weight of the L1 term.")
    l1_mode: Literal["proximal", "subgradient"] = Field(
        default="proximal",
        description="proximal: soft-threshold step, exact zeros; subgradient: as published.",
    )
    l1_parts: tuple[Part, ...] = Field(
        default=("weights", "biases", "norm"), description="Parts of a module under the L1 term."
    )
    initial_scale: PositiveFloat = Field(
        default=1.0, description="Scale of the cosines at the start of a local head."
    )
    threshold: PositiveFloat | None = Field(
        default=None,
        description="After learning, parameters of l1_parts smaller than this become zero.",
    )
    threshold_tolerance: NonNegativeFloat = Field(
        default=0.003,
        description="Accuracy that thresholding may cost; it is halved until it costs no more.",
    )

    @model_validator(mode="after")
    def _schedule_falls(self) -> Self:
        if self.minimum_learning_rate > self.learning_rate:
            raise ValueError(
                f"minimum_learning_rate {self.minimum_learning_rate} is above learning_rate "
                f"{self.learning_rate}; the schedule falls from the second to the first"
            )
        return self

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch: cosine from learning_rate towards minimum_learning_rate."""
        span = self.learning_rate - self.minimum_learning_rate
        fall = 0.5 * (1.0 + math.cos(math.pi * epoch / self.epochs))
        return self.minimum_learning_rate + span * fall


@dataclass(frozen=True)
class LearnedTask:
    """What learning a task gives.

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


@dataclass(frozen=True, kw_only=True)
class LearnJob:
    """One task under one setting, for ``learn_many``.

    Attributes:
        views: training views [n, d]; epoch e reads ``views[e % len(views)]``.
        labels: int64 [n]; local: 0..classes-1, unified: global class indices.
        classes: number of the task's classes (local).
        new_classes: global indices of the task's classes (unified).
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


def learn_local(
    views: Sequence[View],
    labels: Tensor,
    *,
    classes: int,
    luca: LucaSettings,
    learning: LearningSettings,
    seed: int,
    task_key: str,
    test_view: View | None = None,
    check: tuple[View, Tensor] | None = None,
    execution: Execution | None = None,
) -> LearnedTask:
    """Learn a module and a head over the task's own classes.

    The head's rows start at the unit class means of the fresh module's outputs; see ``LearnJob`` for arguments.

    Raises:
        DataError: features or labels do not fit.
        SettingsError: the module does not fit the features, or learning diverged.
    """
    job = LearnJob(
        views=views,
        labels=labels,
        classes=classes,
        luca=luca,
        learning=_with_objective(learning, "local"),
        seed=seed,
        task_key=task_key,
        test_view=test_view,
        check=check,
    )
    return learn_many([job], execution=execution)[0]


def learn_unified(
    views: Sequence[View],
    labels: Tensor,
    *,
    new_classes: Sequence[int],
    previous: UnifiedHead | None,
    luca: LucaSettings,
    learning: LearningSettings,
    seed: int,
    task_key: str,
    test_view: View | None = None,
    check: tuple[View, Tensor] | None = None,
    init: Parameters | None = None,
    init_head: UnifiedHead | None = None,
    order: Any = None,
    execution: Execution | None = None,
) -> LearnedTask:
    """Learn a module along with the head over all classes, as published.

    Afterwards the rows of ``new_classes`` are the class means of the module's outputs on the test view.  See
    ``LearnJob`` for arguments, ``learn_local`` for errors.
    """
    job = LearnJob(
        views=views,
        labels=labels,
        new_classes=new_classes,
        previous=previous,
        luca=luca,
        learning=_with_objective(learning, "unified"),
        seed=seed,
        task_key=task_key,
        test_view=test_view,
        check=check,
        init=init,
        init_head=init_head,
        order=order,
    )
    return learn_many([job], execution=execution)[0]


def learn_many(
    jobs: Sequence[LearnJob], *, stack: int | None = None, execution: Execution | None = None
) -> list[LearnedTask]:
    """Learn several tasks or settings, those of equal shape together as one batched product.

    Jobs may differ in features, seed, L1 weight and learning rate; those that also differ in number of samples,
    classes, module shape, epochs, batch size, momentum, L1 mode or parts are learned in separate stacks.
    Results equal those of learning alone up to round-off.

    Args:
        jobs: what to learn.
        stack: most modules at once; none: as many as stay in a CPU's cache, or all on another device.
        execution: precision, device, ranks.

    Returns:
        one result a job, in order.
    """
    execution = execution or Execution()
    pool = ViewPool(dtype=execution.dtype, device=torch.device(execution.device))
    runs = [_Run.open(job, pool, execution) for job in jobs]
    groups: dict[object, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        groups[run.shape_key()].append(index)
    results: dict[int, LearnedTask] = {}
    for indices in groups.values():
        size = stack or _stack_size(runs[indices[0]], execution)
        for start in range(0, len(indices), size):
            chosen = indices[start : start + size]
            results.update(zip(chosen, _learn([runs[i] for i in chosen], execution), strict=True))
    return [results[index] for index in range(len(jobs))]


@dataclass(frozen=True)
class _Run:
    """A job made ready: features open, module and head at their start, epoch orders to be drawn."""

    job: LearnJob
    task: TaskFeatures
    module: Parameters
    head: UnifiedHead
    order: Callable[[int], Tensor]

    @classmethod
    def open(cls, job: LearnJob, pool: ViewPool, execution: Execution) -> _Run:
        learning = job.learning
        local = learning.objective == "local"
        rows = job.classes if local else _unified_rows(job)
        if rows < 1:
            raise DataError(f"task {job.task_key!r} has no classes; every task needs at least one")
        task = pool.task(job.views, job.labels, rows, job.test_view)
        generator = task_generator(job.seed, job.task_key)
        dtype, width = execution.dtype, task.width
        module = init_parameters(width, job.luca, generator=generator, dtype=dtype)
        if job.init is not None:
            module = {name: job.init[name].to(dtype) for name in module}
        module = {name: value.to(execution.device) for name, value in module.items()}
        if job.init_head is not None:
            head = job.init_head
        elif local:
            means, _ = _class_means(module, job.luca, task.test, task.labels, rows)
            scale = torch.tensor(learning.initial_scale, dtype=dtype)
            head = UnifiedHead(torch.nn.functional.normalize(means, dim=1), scale)
        else:
            head = grow_unified_head(
                job.previous, classes=rows, width=width, generator=generator, dtype=dtype
            )
        head = UnifiedHead(
            head.weight.to(execution.device, dtype), head.scale.to(execution.device, dtype)
        )
        length = task.length
        if job.order is None:
            return cls(
                job, task, module, head, lambda _: torch.randperm(length, generator=generator)
            )
        given = as_order(job.order, epochs=learning.epochs, length=length)
        return cls(job, task, module, head, lambda epoch: given[epoch])

    def shape_key(self) -> object:
        """Equal for runs that can be learned as one batched product."""
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


def _with_objective(
    learning: LearningSettings, objective: Literal["local", "unified"]
) -> LearningSettings:
    return learning.model_copy(update={"objective": objective})


def _unified_rows(job: LearnJob) -> int:
    seen = 0 if job.previous is None else job.previous.weight.shape[0]
    if job.init_head is not None:
        seen = job.init_head.weight.shape[0]
    return max([seen, *(index + 1 for index in job.new_classes)])


def _stack_size(run: _Run, execution: Execution) -> int:
    if torch.device(execution.device).type != "cpu":
        return 1 << 30
    elements = sum(value.numel() for value in run.module.values()) + run.head.weight.numel()
    itemsize = torch.finfo(execution.dtype).bits // 8
    return max(1, STACK_BYTES // (2 * elements * itemsize))


def _learn(runs: Sequence[_Run], execution: Execution) -> list[LearnedTask]:
    """Learn runs of equal shape as one batched product."""
    with torch.no_grad():
        state, losses, step_losses = _optimise(runs, execution)
        results = []
        for index, run in enumerate(runs):
            module, weight, scale = state.module(index)
            learned = LearnedTask(
                module=module,
                head=weight,
                scale=scale,
                losses=losses[:, index].tolist(),
                steps=len(step_losses),
                step_losses=step_losses[:, index].clone() if execution.keep_step_losses else None,
            )
            results.append(_finish(run, learned))
    return results


def _optimise(runs: Sequence[_Run], execution: Execution) -> tuple[FlatState, Tensor, Tensor]:
    learning = runs[0].job.learning
    names = runs[0].module
    state = FlatState(
        [run.module for run in runs],
        [run.head.weight for run in runs],
        [run.head.scale for run in runs],
        penalised=frozenset(name for name in names if part_of(name) in learning.l1_parts),
        with_gradient=execution.reduce is not None,
    )
    flow = runs[0].job.luca.flow
    step = Step(state, flow, momentum=learning.momentum, reduce=execution.reduce)
    update = Update(
        state,
        l1=[run.job.learning.l1 for run in runs],
        proximal=learning.l1_mode == "proximal",
        momentum=learning.momentum,
    )
    plan = BatchPlan(runs[0].task.length, learning.batch_size, execution.rank, execution.world)
    tasks = [run.task for run in runs]
    steps = torch.zeros(learning.epochs * plan.steps, state.count, dtype=execution.dtype)
    steps = steps.to(execution.device)
    slots = list(steps)
    epochs = torch.zeros(learning.epochs, state.count, dtype=execution.dtype)
    number = 0
    for epoch in range(learning.epochs):
        rates = [run.job.learning.rate(epoch) for run in runs]
        first = number
        for batch in plan.epoch(tasks, [run.order(epoch) for run in runs], epoch):
            slot = slots[number]
            step.gradients(batch.features, batch.labels, size=batch.size, losses=slot)
            if execution.keep_step_losses:
                slot.add_(update.penalty())
            update.apply(rates)
            number += 1
        epochs[epoch] = steps[first:number].mean(0)
        if not execution.keep_step_losses:
            epochs[epoch] += update.penalty().to(epochs)
        _check_finite(runs, epochs[epoch], epoch)
    return state, epochs, steps


def _check_finite(runs: Sequence[_Run], losses: Tensor, epoch: int) -> None:
    for run, loss in zip(runs, losses.tolist(), strict=True):
        if not math.isfinite(loss):
            raise SettingsError(
                f"learning task {run.job.task_key!r} diverged in epoch {epoch + 1} (loss {loss}); "
                f"lower learning.learning_rate (now {run.job.learning.learning_rate})"
            )


def _finish(run: _Run, learned: LearnedTask) -> LearnedTask:
    """Threshold if asked, then (unified) put class means into the head."""
    threshold = run.job.learning.threshold
    if threshold is None:
        return _with_class_means(run, learned)
    kept = _with_class_means(run, learned)
    floor = _check_accuracy(run, kept) - run.job.learning.threshold_tolerance
    for _ in range(8):
        pruned = {
            name: torch.where(value.abs() < threshold, torch.zeros_like(value), value)
            if part_of(name) in run.job.learning.l1_parts
            else value
            for name, value in learned.module.items()
        }
        candidate = _with_class_means(run, replace(learned, module=pruned, threshold=threshold))
        if _check_accuracy(run, candidate) >= floor:
            return candidate
        threshold /= 2.0
    return kept


def _with_class_means(run: _Run, learned: LearnedTask) -> LearnedTask:
    if run.job.learning.objective == "local":
        return learned
    rows = learned.head.shape[0]
    means, present = _class_means(
        learned.module, run.job.luca, run.task.test, run.task.labels, rows
    )
    new = torch.zeros_like(present)
    new[list(run.job.new_classes)] = True
    return replace(learned, head=put_rows(learned.head, means, range(rows), present & new))


def _class_means(
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


def _check_accuracy(run: _Run, learned: LearnedTask) -> float:
    """Accuracy of module and head on the samples that guard thresholding."""
    view, labels = run.task.test, run.task.labels
    if run.job.check is not None:
        weight = learned.head
        pool = ViewPool(dtype=weight.dtype, device=weight.device)
        checked = pool.task([run.job.check[0]], run.job.check[1], weight.shape[0], None)
        view, labels = checked.test, checked.labels
    hits = 0
    for rows, block in view.blocks():
        outputs = apply(learned.module, block, run.job.luca.flow)
        logits = cosine_logits(outputs, learned.head, learned.scale)
        hits += int((logits.argmax(-1) == labels[rows]).sum())
    return hits / view.length
