"""Routing by Gaussian classes and by least squares together."""

from __future__ import annotations

import torch

from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import Routing
from workers.modeling.router_settings import LdaRidgeRouterSettings
from workers.modeling.routers.base import Router, RouterInput, tasks_of_slots
from workers.modeling.routers.lda import LdaRouter
from workers.modeling.routers.ridge import RidgeRouter


class LdaRidgeRouter(Router):
    """q(t,c|x) proportional to the square root of q_lda(t,c|x) q_ridge(t,c|x): a logarithmic opinion pool.

    Both halves read the same sums, but err differently: which is the better depends on the stream, and the pool
    is about as good as the better one and less sure where they disagree.  Equal weights, so that nothing is
    tuned; Genest and Zidek, Combining probability distributions, Statistical Science 1986.
    """

    name = "lda_ridge"
    Options = LdaRidgeRouterSettings
    evidence = "statistics"

    def __init__(self, bank: BankTensors, options: LdaRidgeRouterSettings) -> None:
        self._bank = bank
        self._halves = (LdaRouter(bank, options.lda), RidgeRouter(bank, options.ridge))

    @classmethod
    def fit(cls, bank: BankTensors, options: LdaRidgeRouterSettings) -> LdaRidgeRouter:
        """Fits both halves to a bank's statistics.

        Raises:
            BankError: The bank holds other random features than the regression asks for.
        """
        return cls(bank, options)

    def route(self, batch: RouterInput) -> Routing:
        """Posterior over slots, and so over tasks."""
        total = sum(half.slot_log_probs(batch) for half in self._halves)
        assert isinstance(total, torch.Tensor)
        return tasks_of_slots(torch.log_softmax(total / len(self._halves), dim=1), self._bank)
