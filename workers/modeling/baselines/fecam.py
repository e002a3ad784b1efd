"""FeCAM: a covariance per class, shrunk and normalised to a correlation, in a Mahalanobis distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.modeling.baseline_settings import FeCamSettings
from workers.modeling.baselines.base import (
    Baseline,
    BaselineContext,
    BaselinePrediction,
    ClassTable,
    grow,
)
from workers.modeling.shrinkage import NOISE


class FeCam(Baseline):
    """argmin over classes of d^T N(S_c + gamma_1 V_1 I + gamma_2 V_2 (1 - I))^-1 d, d = x/|x| - m_c/|m_c|.

    V_1 and V_2 are the means of the diagonal and of the rest of the class covariance S_c, and N divides by
    the standard deviations.  Goswami et al., NeurIPS 2023, without Tukey's power, which needs non-negative
    features.  Keeps a [d, d] matrix a class.
    """

    name = "fecam"
    Options = FeCamSettings

    def __init__(self, context: BaselineContext, options: FeCamSettings) -> None:
        width = context.width
        self._table = ClassTable(width)
        self._options = options
        self._counts = torch.zeros(0, dtype=torch.float64)
        self._sums = torch.zeros(0, width, dtype=torch.float64)
        self._grams: list[Tensor] = []
        self._roots: list[Tensor | None] = []

    @classmethod
    def create(cls, context: BaselineContext, options: FeCamSettings) -> FeCam:
        """An untrained baseline."""
        return cls(context, options)

    def observe(self, features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
        """Adds the task's samples to their classes' sums and Gram matrices."""
        samples, index = self._table.enter(features, labels, classes)
        self._counts = grow(self._counts, len(self._table))
        self._sums = grow(self._sums, len(self._table))
        width = self._table.width
        while len(self._grams) < len(self._table):
            self._grams.append(torch.zeros(width, width, dtype=torch.float64))
            self._roots.append(None)
        for row in torch.unique(index).tolist():
            mine = samples[index == row].to(torch.float64)
            self._counts[row] += len(mine)
            self._sums[row] += mine.sum(dim=0)
            self._grams[row] += mine.T @ mine
            self._roots[row] = None

    def predict(self, features: Tensor) -> BaselinePrediction:
        """Decides among all classes seen so far."""
        self._table.need_classes()
        unit = torch.nn.functional.normalize(self._table.check(features), dim=1)
        distances = torch.stack([self._distance(unit, row) for row in range(len(self._table))], 1)
        return self._table.decide(-0.5 * distances)

    def _distance(self, unit: Tensor, row: int) -> Tensor:
        if self._counts[row] == 0:
            return torch.full((len(unit),), torch.inf, dtype=torch.float64)
        root = self._roots[row]
        if root is None:
            root = self._inverse_root(row)
            self._roots[row] = root
        mean = torch.nn.functional.normalize(self._sums[row], dim=0).to(torch.float32)
        centred: Tensor = (unit - mean) @ root
        return centred.square().sum(dim=1).to(torch.float64)

    def _inverse_root(self, row: int) -> Tensor:
        """A root R of the inverse, R R^T = N(...)^-1, float32 [d, d]."""
        count = self._counts[row]
        mean = self._sums[row] / count
        covariance = (self._grams[row] - count * torch.outer(mean, mean)) / (count - 1).clamp_min(1)
        width = self._table.width
        variance = covariance.diagonal().mean()
        noise = NOISE * float(self._grams[row].diagonal().mean()) / float((count - 1).clamp_min(1))
        if not variance > max(noise, 1e-30):  # one sample, or samples that are all alike
            return torch.eye(width)
        rest = (covariance.sum() - covariance.trace()) / max(1, width * (width - 1))
        identity = torch.eye(width, dtype=torch.float64)
        shrunk = (
            covariance
            + self._options.diagonal_shrinkage * variance * identity
            + self._options.off_diagonal_shrinkage * rest * (1 - identity)
        )
        deviations = shrunk.diagonal().sqrt()
        values, vectors = torch.linalg.eigh(shrunk / torch.outer(deviations, deviations))
        inverse_root: Tensor = vectors / values.clamp_min(1e-6).sqrt()
        return inverse_root.to(torch.float32)
