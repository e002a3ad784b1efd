"""Learning LuCA modules: one task, or many tasks and settings at once, from features in memory or on disk.

Two objectives.  ``unified`` is the published recipe: one cosine head over all classes seen so far, trained along
with the newest module.  ``local`` trains a module with a head over its own task's classes alone, so that tasks do not
depend on each other and may be learned in any order.  All randomness comes from (seed, task key): the result does
not depend on which worker learns, nor on what else it learned.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from workers.errors import SettingsError
from workers.modeling.batches import BatchPlan, FeatureView, View, ViewPool
from workers.modeling.finishing import finish
from workers.modeling.flat import FlatState, Update
from workers.modeling.heads import UnifiedHead
from workers.modeling.jobs import Execution, LearnedTask, LearnJob, PreparedJob, task_generator
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca import Parameters, part_of
from workers.modeling.luca_settings import LucaSettings
from workers.modeling.step import Reduce, Step

__all__ = [
    "Execution",
    "FeatureView",
    "LearnJob",
    "LearnedTask",
    "Reduce",
    "UnifiedHead",
    "View",
    "learn_local",
    "learn_many",
    "learn_unified",
    "task_generator",
]

STACK_BYTES = 8 * 2**20


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

    The head grows by ``new_classes``.  After the last step the rows of all classes that the task has samples of
    become the class means of the module's outputs on the test view.  See ``LearnJob`` for arguments,
    ``learn_local`` for errors.
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
    ready = [PreparedJob.open(job, pool, execution) for job in jobs]
    groups: dict[object, list[int]] = defaultdict(list)
    for index, prepared in enumerate(ready):
        groups[prepared.shape_key()].append(index)
    results: dict[int, LearnedTask] = {}
    for indices in groups.values():
        size = stack or _stack_size(ready[indices[0]], execution)
        for start in range(0, len(indices), size):
            chosen = indices[start : start + size]
            results.update(zip(chosen, _learn([ready[i] for i in chosen], execution), strict=True))
    return [results[index] for index in range(len(jobs))]


def _with_objective(
    learning: LearningSettings, objective: Literal["local", "unified"]
) -> LearningSettings:
    return learning.model_copy(update={"objective": objective})


def _stack_size(prepared: PreparedJob, execution: Execution) -> int:
    if torch.device(execution.device).type != "cpu":
        return 1 << 30
    elements = (
        sum(value.numel() for value in prepared.module.values()) + prepared.head.weight.numel()
    )
    itemsize = torch.finfo(execution.dtype).bits // 8
    return max(1, STACK_BYTES // (2 * elements * itemsize))


def _learn(jobs: Sequence[PreparedJob], execution: Execution) -> list[LearnedTask]:
    """Learn jobs of equal shape as one batched product."""
    with torch.no_grad():
        state, losses, step_losses = _optimise(jobs, execution)
        results = []
        for index, prepared in enumerate(jobs):
            module, weight, scale = state.module(index)
            learned = LearnedTask(
                module=module,
                head=weight,
                scale=scale,
                losses=losses[:, index].tolist(),
                steps=len(step_losses),
                step_losses=step_losses[:, index].clone() if execution.keep_step_losses else None,
            )
            results.append(finish(prepared, learned).cpu())
    return results


def _optimise(
    jobs: Sequence[PreparedJob], execution: Execution
) -> tuple[FlatState, Tensor, Tensor]:
    learning = jobs[0].job.learning
    names = jobs[0].module
    state = FlatState(
        [prepared.module for prepared in jobs],
        [prepared.head.weight for prepared in jobs],
        [prepared.head.scale for prepared in jobs],
        penalised=frozenset(name for name in names if part_of(name) in learning.l1_parts),
        with_gradient=execution.reduce is not None,
    )
    flow = jobs[0].job.luca.flow
    step = Step(state, flow, momentum=learning.momentum, reduce=execution.reduce)
    update = Update(
        state,
        l1=[prepared.job.learning.l1 for prepared in jobs],
        proximal=learning.l1_mode == "proximal",
        momentum=learning.momentum,
    )
    plan = BatchPlan(
        [prepared.task for prepared in jobs],
        learning.batch_size,
        rank=execution.rank,
        world=execution.world,
    )
    shape = (learning.epochs * plan.steps, state.count)
    losses = torch.zeros(shape, dtype=execution.dtype, device=execution.device)
    penalties = torch.zeros_like(losses)
    slots = (losses.squeeze(1) if state.count == 1 else losses).unbind()
    sizes = torch.tensor(plan.sizes, dtype=losses.dtype, device=losses.device).neg_().unsqueeze(1)
    epochs = torch.zeros(learning.epochs, state.count, dtype=losses.dtype, device=losses.device)
    number = 0
    for epoch in range(learning.epochs):
        update.set_rates([prepared.job.learning.rate(epoch) for prepared in jobs])
        for batch in plan.epoch([prepared.order(epoch) for prepared in jobs], epoch):
            if execution.keep_step_losses:
                penalties[number] = update.penalty()
            step.gradients(batch.features, batch.labels, size=batch.size, slot=slots[number])
            update.apply()
            number += 1
        own = losses[number - plan.steps : number].div_(sizes)
        epochs[epoch] = own.mean(0) + update.penalty()
        _check_finite(jobs, epochs[epoch], epoch)
    return state, epochs, losses.add_(penalties)


def _check_finite(jobs: Sequence[PreparedJob], losses: Tensor, epoch: int) -> None:
    for prepared, loss in zip(jobs, losses.tolist(), strict=True):
        if not math.isfinite(loss):
            raise SettingsError(
                f"learning task {prepared.job.task_key!r} diverged in epoch {epoch + 1} (loss {loss}); "
                f"lower learning.learning_rate (now {prepared.job.learning.learning_rate})"
            )
