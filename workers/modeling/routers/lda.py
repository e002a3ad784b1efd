"""Routing by Gaussian classes with a shared covariance (linear discriminant analysis)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import Routing
from workers.modeling.gaussian import Prior, SharedGaussian
from workers.modeling.routers.base import Router, RouterInput, tasks_of_slots
from workers.settings import Settings


class LdaRouterSettings(Settings):
    """Settings of `LdaRouter`."""

    shrinkage: Literal["oas"] | float = Field(
        "oas",
        description="Weight of the identity in the covariance: closed form, or fixed in [0, 1].",
    )
    prior: Prior = Field(
        "uniform",
        description="Prior of a slot: the same for all, or its share of training samples.",
    )
    temperature: PositiveFloat = Field(
        4.0,
        description=(
            "Divides the log-likelihoods. Classes are heavier-tailed than Gaussians, so 1 is far too "
            "sure; 4 gave the best calibrated posteriors on the validation splits of four streams."
        ),
    )


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

    def route(self, batch: RouterInput) -> Routing:
        """Posterior over slots, and so over tasks."""
        return tasks_of_slots(
            self._classifier.log_posterior(batch.features, self._temperature), self._bank
        )
