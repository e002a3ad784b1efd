"""Joins what a router says about tasks with what the modules say about classes.

Everything is written over *slots*, (task, class) pairs, and summed over the slots of a class at the end, so that
several modules of the same class (domain-incremental streams) need no special case.  With q(t|x) and q(t,c|x) the
router's posterior over tasks and slots, and p(c|t,x) the module of task t:

- hard: the most likely task's module decides.  p(c|x) = q(t*) p(c|t*) for its classes; the mass of every other
  task is spread evenly over that task's classes, since their modules are not run.
- joint: p(t,c|x) = q(t|x) p(c|t,x).
- product: p(t,c|x) is proportional to q(t,c|x) p(c|t,x).  A router that speaks of tasks only has
  q(t,c|x) = q(t|x) / |Y_t|, up to which this is a joint reading with smaller tasks favoured; it is therefore
  treated as joint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Combination = Literal["hard", "joint", "product"]

# Tasks whose whole mass is below this share of the attained mass change nothing that float32 could show.
NEGLIGIBLE = 1e-9


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


def softmax_by_group(logits: Tensor, groups: Tensor, size: int) -> Tensor:
    """log-softmax of [n, s] within each group of columns [s], float64 [n, s]."""
    values = logits.to(torch.float64)
    index = groups.expand_as(values)
    peak = torch.full((values.shape[0], size), -torch.inf, dtype=torch.float64)
    peak.scatter_reduce_(1, index, values, "amax")
    shifted = values - peak[:, groups]
    total = sum_by_group(shifted.exp(), groups, size)
    return shifted - total.log()[:, groups]


def log_sum_by_group(log_probs: Tensor, groups: Tensor, size: int) -> Tensor:
    """log of the summed probabilities of columns that share a group: [n, s] -> [n, size]."""
    peak = log_probs.amax(dim=1, keepdim=True).clamp_min(-1e300)
    return sum_by_group((log_probs - peak).exp(), groups, size).log() + peak


def candidates(combination: Combination, routing: Routing) -> Tensor:
    """Which modules have to run to get a first, attained mass: bool [n, T].

    For "hard" the best task; for "joint" every task whose mass is not negligible; for "product" the
    best task first (see `further_candidates`).
    """
    log_probs = routing.task_log_probs
    best = log_probs.amax(dim=1, keepdim=True)
    if combination == "joint" or (combination == "product" and routing.slot_log_probs is None):
        return log_probs > best + torch.log(torch.tensor(NEGLIGIBLE, dtype=torch.float64))
    chosen = torch.zeros_like(log_probs, dtype=torch.bool)
    return chosen.scatter_(1, log_probs.argmax(dim=1, keepdim=True), True)


def further_candidates(routing: Routing, attained: Tensor) -> Tensor:
    """Tasks that may still matter to a product whose first task attained the log mass [n]: bool [n, T]."""
    log_floor = attained[:, None] + torch.log(torch.tensor(NEGLIGIBLE, dtype=torch.float64))
    return routing.task_log_probs > log_floor


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
    if combination == "joint" or routing.slot_log_probs is None:
        slots = own + module_log_probs
    else:
        slots = routing.slot_log_probs + module_log_probs
    slots = slots - slots.logsumexp(dim=1, keepdim=True)
    class_log_probs = log_sum_by_group(slots, slot_class, classes)
    return Combined(
        class_index=class_log_probs.argmax(dim=1),
        class_log_probs=class_log_probs,
        task_log_probs=log_sum_by_group(slots, slot_task, tasks),
    )
