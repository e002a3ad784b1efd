"""SimpleCIL: cosine to class means, nothing is learned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.modeling.baseline_settings import SimpleCilSettings
from workers.modeling.baselines.base import (
    Baseline,
    BaselineContext,
    BaselinePrediction,
    ClassTable,
    grow,
)


class SimpleCil(Baseline):
    """argmax over classes of cos(x, class mean).  Zhou et al., Revisiting class-incremental learning with
    pre-trained models, IJCV 2024."""

    name = "simplecil"
    Options = SimpleCilSettings

    def __init__(self, context: BaselineContext, options: SimpleCilSettings) -> None:
        self._table = ClassTable(context.width)
        self._temperature = options.temperature
        self._sums = torch.zeros(0, context.width, dtype=torch.float64)

    @classmethod
    def create(cls, context: BaselineContext, options: SimpleCilSettings) -> SimpleCil:
        """An untrained baseline."""
        return cls(context, options)

    def observe(self, features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
        """Adds the task's samples to the class sums (a mean and a sum have the same cosine)."""
        samples, rows = self._table.enter(features, labels, classes)
        self._sums = grow(self._sums, len(self._table))
        self._sums.index_add_(0, rows, samples.to(torch.float64))

    def predict(self, features: Tensor) -> BaselinePrediction:
        """Decides among all classes seen so far."""
        self._table.need_classes()
        unit = torch.nn.functional.normalize(self._table.check(features).to(torch.float64), dim=1)
        prototypes = torch.nn.functional.normalize(self._sums, dim=1)
        return self._table.decide(unit @ prototypes.T / self._temperature)
