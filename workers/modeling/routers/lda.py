"""Routing by Gaussian classes with a shared covariance (linear discriminant analysis)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import Routing
from workers.modeling.gaussian import SharedGaussian
from workers.modeling.router_settings import LdaRouterSettings
from workers.modeling.routers.base import Router, RouterInput, tasks_of_slots

if TYPE_CHECKING:
    from torch import Tensor


class LdaRouter(Router):
    """p(task, class | x) from Gaussians with a shared, shrunk covariance, fitted on sums.

    Exemplar-free and exact in any order of tasks; streaming LDA, Hayes and Kanan, CVPR-W 2020.
    """

    name = "lda"
    Options = LdaRouterSettings
    evidence = "statistics"

    def __init__(self, bank: BankTensors, options: LdaRouterSettings) -> None:
        pooled = bank.pooled
        means, scatter = pooled.whitened(bank.whitening)
        self._bank = bank
        self._temperature = options.temperature
        self._classifier = SharedGaussian.fit(
            means,
            scatter,
            pooled.counts,
            shrinkage=None if options.shrinkage == "oas" else float(options.shrinkage),
            prior=options.prior,
        )

    @classmethod
    def fit(cls, bank: BankTensors, options: LdaRouterSettings) -> LdaRouter:
        """Fits the router to a bank's statistics."""
        return cls(bank, options)

    def slot_log_probs(self, batch: RouterInput) -> Tensor:
        """log q(t,c|x), float64 [n, s]."""
        return self._classifier.log_posterior(batch.features, self._temperature)

    def route(self, batch: RouterInput) -> Routing:
        """Posterior over slots, and so over tasks."""
        return tasks_of_slots(self.slot_log_probs(batch), self._bank)
