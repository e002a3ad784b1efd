"""What a router is: it says which task, and perhaps which slot, a feature belongs to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import Routing, log_sum_by_group
from workers.modeling.router_settings import Combination, RouterSettings

Evidence = Literal["statistics", "entropies", "task ids"]


@dataclass(frozen=True)
class RouterInput:
    """One batch as a router sees it.

    Attributes:
        raw: Raw features [n, d].
        features: The same as modules read them: whitened where the bank says so, [n, d].
        entropies: Normalised entropy of every module's prediction, float64 [n, T]; only for routers
            whose evidence is "entropies".
        task_ids: True task positions, int64 [n]; only for routers whose evidence is "task ids".
    """

    raw: Tensor
    features: Tensor
    entropies: Tensor | None = None
    task_ids: Tensor | None = None


class Router(ABC):
    """Routes features to tasks.  Fitted from a bank alone; a new router is a new file and one line.

    Attributes:
        name: Name in experiments and reports.
        Options: Its settings, which also say whether it is order-dependent or an upper bound.
        evidence: What it looks at.
        combination: How it is joined with the modules whatever the settings say; None: as they say.
        batch_size: Samples that are routed together (order-dependent routers), else None.
        shuffle_seed: Seed of a permutation applied before samples are batched; None: as they come.
    """

    name: ClassVar[str]
    Options: ClassVar[type[RouterSettings]]
    evidence: ClassVar[Evidence]
    combination: ClassVar[Combination | None] = None
    batch_size: int | None = None
    shuffle_seed: int | None = None

    @classmethod
    @abstractmethod
    def fit(cls, bank: BankTensors, options: Any) -> Router:
        """Fits the router to a bank; ``options`` are of type ``Options``.

        Raises:
            BankError: The bank lacks what the router needs.
        """

    @abstractmethod
    def route(self, batch: RouterInput) -> Routing:
        """Belief over tasks for every row of the batch."""


def tasks_of_slots(slot_log_probs: Tensor, bank: BankTensors) -> Routing:
    """Routing from a posterior over slots: a task has the mass of its slots."""
    return Routing(
        task_log_probs=log_sum_by_group(slot_log_probs, bank.slot_task, len(bank.tasks)),
        slot_log_probs=slot_log_probs,
    )


def task_softmax(scores: Tensor) -> Routing:
    """Routing from scores of tasks, [n, T]."""
    return Routing(task_log_probs=torch.log_softmax(scores.to(torch.float64), dim=-1))
