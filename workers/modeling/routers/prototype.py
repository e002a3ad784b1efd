"""Nearest-class-mean routing: which task does a feature belong to?"""

from __future__ import annotations

import torch

from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import Routing
from workers.modeling.router_settings import PrototypeRouterSettings
from workers.modeling.routers.base import Router, RouterInput, tasks_of_slots


class PrototypeRouter(Router):
    """p(task, class | x) = softmax over slots of cos(x, class mean) / temperature.

    Nearest class mean classifier, Mensink et al., TPAMI 2013; with cosine as in SimpleCIL, Zhou et al. 2023.
    """

    name = "prototype"
    Options = PrototypeRouterSettings
    evidence = "statistics"

    def __init__(self, bank: BankTensors, options: PrototypeRouterSettings) -> None:
        pooled = bank.pooled
        means = pooled.means
        if bank.whitening is not None:
            means = bank.whitening.transform_means(means)
        self._bank = bank
        self._temperature = options.temperature
        self._prototypes = torch.nn.functional.normalize(torch.from_numpy(means.copy()), dim=1)
        self._absent = torch.from_numpy(pooled.counts == 0)

    @classmethod
    def fit(cls, bank: BankTensors, options: PrototypeRouterSettings) -> PrototypeRouter:
        """Fits the router to a bank's statistics."""
        return cls(bank, options)

    def route(self, batch: RouterInput) -> Routing:
        """Posterior over slots, and so over tasks."""
        unit = torch.nn.functional.normalize(batch.features.to(torch.float64), dim=1)
        scores = unit @ self._prototypes.T / self._temperature
        scores = scores.masked_fill(self._absent, -torch.inf)
        return tasks_of_slots(torch.log_softmax(scores, dim=1), self._bank)
