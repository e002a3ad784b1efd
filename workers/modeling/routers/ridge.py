"""Routing by regularised least squares on features or on fixed random ReLU features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.errors import BankError
from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import Routing
from workers.modeling.packing import unpack_upper
from workers.modeling.projection import RandomProjection
from workers.modeling.ridge import RidgeClassifier
from workers.modeling.router_settings import RidgeRouterSettings
from workers.modeling.routers.base import Router, RouterInput, tasks_of_slots

if TYPE_CHECKING:
    from torch import Tensor


class RidgeRouter(Router):
    """p(task, class | x) from ridge regression of one-hot slots, fitted on sums.

    With random features this is RanPAC's classifier (McDonnell et al., NeurIPS 2023) used as a router.
    """

    name = "ridge"
    Options = RidgeRouterSettings
    evidence = "statistics"

    def __init__(self, bank: BankTensors, options: RidgeRouterSettings) -> None:
        pooled = bank.pooled
        penalty = None if options.penalty == "gcv" else float(options.penalty)
        self._bank = bank
        self._temperature = options.temperature
        self._projection: RandomProjection | None = None
        if options.random_features:
            spec = pooled.projection
            if spec is None or spec.size != options.random_features:
                found = "none" if spec is None else f"{spec.size}"
                raise BankError(
                    f"ridge regression asks for {options.random_features} random features, but the "
                    f"bank's statistics hold {found} for all of its tasks; learn the bank with this "
                    "setting, or set random_features to what it holds (0 always works)."
                )
            assert pooled.projected_sums is not None
            assert pooled.projected_gram is not None
            self._projection = RandomProjection(spec, bank.whitening if spec.whitened else None)
            sums, gram = pooled.projected_sums, unpack_upper(pooled.projected_gram, spec.size)
        else:
            means, scatter = pooled.whitened(bank.whitening)
            sums = means * pooled.counts[:, None]
            gram = scatter + means.T @ sums
        self._classifier = RidgeClassifier.fit(sums, gram, pooled.counts, penalty=penalty)

    @classmethod
    def fit(cls, bank: BankTensors, options: RidgeRouterSettings) -> RidgeRouter:
        """Fits the router to a bank's statistics."""
        return cls(bank, options)

    @property
    def penalty(self) -> float:
        """The lambda in use, in the units of the Gram matrix."""
        return self._classifier.penalty

    def slot_log_probs(self, batch: RouterInput) -> Tensor:
        """log q(t,c|x), float64 [n, s]."""
        inputs = batch.features if self._projection is None else self._projection(batch.raw)
        return self._classifier.log_posterior(inputs, self._temperature)

    def route(self, batch: RouterInput) -> Routing:
        """Posterior over slots, and so over tasks."""
        return tasks_of_slots(self.slot_log_probs(batch), self._bank)
