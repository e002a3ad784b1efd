"""SLDA: Gaussian classes with one shared covariance, kept as sums."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from workers.modeling.baseline_settings import SldaSettings
from workers.modeling.baselines.base import (
    Baseline,
    BaselineContext,
    BaselinePrediction,
    ClassTable,
)
from workers.modeling.baselines.sums import RunningSums
from workers.modeling.gaussian import SharedGaussian


class Slda(Baseline):
    """Streaming linear discriminant analysis, Hayes and Kanan, CVPR-W 2020.

    The covariance is shrunk by oracle approximating shrinkage, not by a constant.  It differs from the
    router ``lda`` in that a class has one Gaussian, however many tasks it was seen in.
    """

    name = "slda"
    Options = SldaSettings

    def __init__(self, context: BaselineContext, options: SldaSettings) -> None:
        self._temperature = options.temperature
        self._table = ClassTable(context.width)
        self._sums = RunningSums(context.width, self._table)
        self._classifier: SharedGaussian | None = None

    @classmethod
    def create(cls, context: BaselineContext, options: SldaSettings) -> Slda:
        """An untrained baseline."""
        return cls(context, options)

    def observe(self, features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
        """Adds the task's samples to the sums."""
        self._sums.add(*self._table.enter(features, labels, classes))
        self._classifier = None

    def predict(self, features: Tensor) -> BaselinePrediction:
        """Decides among all classes seen so far."""
        self._table.need_classes()
        rows = self._table.check(features)
        if self._classifier is None:
            self._classifier = SharedGaussian.fit(
                self._sums.means, self._sums.within_scatter, self._sums.counts
            )
        return self._table.decide(self._classifier.log_posterior(rows, self._temperature))
