"""RanPAC without first-session adaptation: ridge regression on fixed random ReLU features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.modeling.baseline_settings import RanPacSettings
from workers.modeling.baselines.base import (
    Baseline,
    BaselineContext,
    BaselinePrediction,
    ClassTable,
)
from workers.modeling.baselines.sums import RunningSums
from workers.modeling.projection import ProjectionSpec, RandomProjection
from workers.modeling.ridge import RidgeClassifier


class RanPac(Baseline):
    """McDonnell et al., RanPAC: random projections and pre-trained models for continual learning, NeurIPS 2023.

    The published code picks lambda on a fifth of the newest task's training samples; here it minimises
    generalised cross-validation over all samples seen, which the sums are enough for.
    """

    name = "ranpac"
    Options = RanPacSettings

    def __init__(self, context: BaselineContext, options: RanPacSettings) -> None:
        self._table = ClassTable(context.width)
        self._projection = RandomProjection(
            ProjectionSpec(seed=context.seed, width=context.width, size=options.random_features)
        )
        self._sums = RunningSums(options.random_features, self._table)
        self._penalty = None if options.penalty == "gcv" else float(options.penalty)
        self._classifier: RidgeClassifier | None = None

    @classmethod
    def create(cls, context: BaselineContext, options: RanPacSettings) -> RanPac:
        """An untrained baseline."""
        return cls(context, options)

    def observe(self, features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
        """Adds the task's samples to the sums of random features."""
        samples, rows = self._table.enter(features, labels, classes)
        for part in torch.split(torch.arange(len(samples)), 1024):
            self._sums.add(self._projection(samples[part]), rows[part])
        self._classifier = None

    def predict(self, features: Tensor) -> BaselinePrediction:
        """Decides among all classes seen so far."""
        self._table.need_classes()
        rows = self._table.check(features)
        if self._classifier is None:
            self._classifier = RidgeClassifier.fit(
                self._sums.sums, self._sums.gram, self._sums.counts, penalty=self._penalty
            )
        scores = [
            self._classifier.log_posterior(self._projection(part))
            for part in torch.split(rows, 1024)
        ]
        return self._table.decide(torch.cat(scores))
