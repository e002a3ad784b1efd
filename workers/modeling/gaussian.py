"""Gaussian classes with one shared covariance: linear discriminant analysis from sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from workers.modeling.router_settings import Prior
from workers.modeling.shrinkage import shrunk_covariance

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True)
class SharedGaussian:
    """Log-densities of slots up to a term that all share: x W + b.

    The computation is carried out around the mean of the slot means, so large common offsets of the
    features cost no precision, and in float64, so that a decision does not hang on the shape of a batch.

    Attributes:
        centre: float64 [d].
        weights: float64 [d, s].
        bias: float64 [s]; -inf for a slot without samples.
        shrinkage: Weight of the identity that was used, in [0, 1].
    """

    centre: Tensor
    weights: Tensor
    bias: Tensor
    shrinkage: float

    @classmethod
    def fit(
        cls,
        means: NDArray[np.float64],
        scatter: NDArray[np.float64],
        counts: NDArray[np.int64],
        *,
        shrinkage: float | None = None,
        prior: Prior = "uniform",
    ) -> SharedGaussian:
        """Fits means [s, d] and the pooled within-slot scatter [d, d] of counts [s] samples.

        log p(x | s) = -1/2 (x - m_s)^T Sigma^-1 (x - m_s) + const, with Sigma shrunk by oracle
        approximating shrinkage unless ``shrinkage`` fixes the weight of the identity.
        """
        present = counts > 0
        covariance, used = shrunk_covariance(
            scatter, float(counts.sum() - np.count_nonzero(present)), shrinkage
        )
        centre = means[present].mean(axis=0)
        centred = means - centre
        weights = np.linalg.solve(covariance, centred.T)
        bias = -0.5 * np.einsum("sd,ds->s", centred, weights)
        if prior == "counts":
            bias = bias + np.log(np.maximum(counts, 1) / max(1, int(counts.sum())))
        bias[~present] = -np.inf
        return cls(
            centre=torch.from_numpy(centre),
            weights=torch.from_numpy(np.ascontiguousarray(weights)),
            bias=torch.from_numpy(bias),
            shrinkage=used,
        )

    def log_posterior(self, features: Tensor, temperature: float = 1.0) -> Tensor:
        """log p(slot | x), float64 [n, s], from features [n, d]."""
        scores = (features.to(torch.float64) - self.centre) @ self.weights + self.bias
        return torch.log_softmax(scores / temperature, dim=-1)
