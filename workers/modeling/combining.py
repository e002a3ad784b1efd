"""Joins what a router says about tasks with what the modules say about classes.

Everything is written over *slots*, (task, class) pairs, and summed over the slots of a class at the end, so that
several modules of the same class (domain-incremental streams) need no special case.  With q(t|x) and q(t,c|x) the
router's posterior over tasks and slots, and p(c|t,x) the module of task t:

- hard: the most likely task's module decides.  p(c|x) = q(t*) p(c|t*) for its classes; the mass of every other
  task is spread evenly over that task's classes, since their modules are not run.
- joint: p(t,c|x) = q(t|x) p(c|t,x).
- product: p(t,c|x) is proportional to q(t,c|x) p(c|t,x).  A router that speaks of tasks only (entropy, oracle)
  has no class posterior to multiply with; its product is the hard choice, as published.
- refine: p(t,c|x) = q(t|x) r(c|t,x), where r is proportional to q(c|t,x)^(1-a) p(c|t,x)^a over the classes of task t,
  with a = `REFINE_SHARE`: the modules speak only where they were trained to, between the classes of a task, and
  the router's belief in the task is not moved by how sharp a module is.  Tasks-only routers: the hard choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.modeling.router_settings import Combination

# Weight of the modules in "refine".  Chosen on validation splits of four streams in six class orders each: of 1/4, 1/2
# and 3/4 the one that cost no router accuracy (docs/results.md).
REFINE_SHARE = 0.25

# Share of the probability mass that may be left out: below the resolution of float32.
NEGLIGIBLE = 1e-7


@dataclass(frozen=True)
class Routing:
    """A router's belief.

    Attributes:
        task_log_probs: log q(t|x), float64 [n, T].
        slot_log_probs: log q(t,c|x), float64 [n, s], or None from a router that only knows tasks.
        own_classes_only: The decision is to be made among the classes of the task, even where the
            modules score all classes seen (task-incremental evaluation).
    """

    task_log_probs: Tensor
    slot_log_probs: Tensor | None = None
    own_classes_only: bool = False


@dataclass(frozen=True)
class Combined:
    """Posterior of a batch.

    Attributes:
        class_index: Predicted class, int64 [n].
        class_log_probs: log p(c|x), float64 [n, C].
        task_log_probs: log p(t|x) under the combination, float64 [n, T].
    """

    class_index: Tensor
    class_log_probs: Tensor
    task_log_probs: Tensor


def sum_by_group(probs: Tensor, groups: Tensor, size: int) -> Tensor:
    """Sums columns [n, s] that share a group number [s] into [n, size]."""
    out = torch.zeros(probs.shape[0], size, dtype=probs.dtype)
    return out.index_add_(1, groups, probs)


def _peak_by_group(values: Tensor, groups: Tensor, size: int) -> Tensor:
    """Largest value of each group of columns, [n, s] -> [n, size]; -inf for an empty group."""
    peak = torch.full((values.shape[0], size), -torch.inf, dtype=torch.float64)
    return peak.scatter_reduce_(1, groups.expand_as(values), values, "amax")


def softmax_by_group(logits: Tensor, groups: Tensor, size: int) -> Tensor:
    """log-softmax of [n, s] within each group of columns [s], float64 [n, s]."""
    values = logits.to(torch.float64)
    shifted = values - _peak_by_group(values, groups, size)[:, groups]
    total = sum_by_group(shifted.exp(), groups, size)
    return shifted - total.log()[:, groups]


def log_sum_by_group(log_probs: Tensor, groups: Tensor, size: int) -> Tensor:
    """log of the summed probabilities of columns that share a group: [n, s] -> [n, size]."""
    peak = _peak_by_group(log_probs, groups, size)
    finite = peak.clamp_min(-1e300)
    return sum_by_group((log_probs - finite[:, groups]).exp(), groups, size).log() + peak


def effective(combination: Combination, routing: Routing) -> Combination:
    """The combination that a routing allows: "hard" where it takes a posterior over slots and there is none."""
    if combination in ("product", "refine") and routing.slot_log_probs is None:
        return "hard"
    return combination


def candidates(combination: Combination, routing: Routing) -> Tensor:
    """Which modules have to run first: bool [n, T].

    For "hard" and "product" the best task (see `further_candidates` for the rest of a product); for
    "joint" and "refine" every task but a tail that is negligible.
    """
    log_probs = routing.task_log_probs
    if combination in ("joint", "refine"):
        return further_candidates(routing, log_probs.logsumexp(dim=1))
    chosen = torch.zeros_like(log_probs, dtype=torch.bool)
    return chosen.scatter_(1, log_probs.argmax(dim=1, keepdim=True), True)


def further_candidates(routing: Routing, attained: Tensor) -> Tensor:
    """Tasks that may still matter where the log mass ``attained`` [n] is certain: bool [n, T].

    A task's final mass is at most its routing mass.  Left out are the least likely tasks, as many as
    together hold no more than `NEGLIGIBLE` of the attained mass: whatever their modules say, no
    probability changes by more than that share.
    """
    ascending = routing.task_log_probs.sort(dim=1)
    tail = (ascending.values - attained[:, None]).exp().cumsum(dim=1)
    matters = torch.zeros_like(tail, dtype=torch.bool)
    return matters.scatter_(1, ascending.indices, tail > NEGLIGIBLE)


def combine_local(
    combination: Combination,
    routing: Routing,
    module_log_probs: Tensor,
    *,
    slot_task: Tensor,
    slot_class: Tensor,
    tasks: int,
    classes: int,
) -> Combined:
    """Combines routing with modules that decide among their own classes.

    Args:
        combination: See the module's text.
        routing: Belief of the router.
        module_log_probs: log p(c|t,x), float64 [n, s]; -inf for modules that were not run because
            they cannot matter.
        slot_task: int64 [s].
        slot_class: int64 [s].
        tasks: T.
        classes: C.
    """
    task_log_probs = routing.task_log_probs
    own = task_log_probs[:, slot_task]
    combination = effective(combination, routing)
    if combination == "hard":
        best = task_log_probs.argmax(dim=1)
        mine = slot_task[None, :] == best[:, None]
        decided = module_log_probs.masked_fill(~mine, -torch.inf)
        sizes = torch.bincount(slot_task, minlength=tasks).to(torch.float64)
        slots = torch.where(mine, own + module_log_probs, own - sizes.log()[slot_task])
        return Combined(
            class_index=slot_class[decided.argmax(dim=1)],
            class_log_probs=log_sum_by_group(slots, slot_class, classes),
            task_log_probs=task_log_probs,
        )
    belief = routing.slot_log_probs if combination == "product" else None
    if combination == "refine":
        module_log_probs = refined(routing, module_log_probs, slot_task)
    slots = (own if belief is None else belief) + module_log_probs
    slots = slots - slots.logsumexp(dim=1, keepdim=True)
    class_log_probs = log_sum_by_group(slots, slot_class, classes)
    return Combined(
        class_index=class_log_probs.argmax(dim=1),
        class_log_probs=class_log_probs,
        task_log_probs=log_sum_by_group(slots, slot_task, tasks),
    )


def refined(routing: Routing, module_log_probs: Tensor, slot_task: Tensor) -> Tensor:
    """log r(c|t,x) of "refine", float64 [n, s]; -inf for modules that were not run.

    Args:
        routing: Belief of a router that speaks of slots.
        module_log_probs: log p(c|t,x), float64 [n, s].
        slot_task: int64 [s].
    """
    assert routing.slot_log_probs is not None
    tasks = routing.task_log_probs.shape[1]
    believed = _within(routing.slot_log_probs, slot_task, tasks)
    mixed = (1 - REFINE_SHARE) * believed + REFINE_SHARE * module_log_probs
    return _within(mixed, slot_task, tasks)


def _within(log_probs: Tensor, groups: Tensor, size: int) -> Tensor:
    """Normalised within each group of columns; a group without any mass stays at -inf."""
    total = log_sum_by_group(log_probs, groups, size).clamp_min(-1e300)
    return log_probs - total[:, groups]
