"""Ridge regression to one-hot classes from sums, with the regularisation chosen in closed form.

Generalised cross-validation needs only the Gram matrix and the class sums.  After one factorisation of the
Gram matrix any number of candidate lambdas costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

CANDIDATES = tuple(float(value) for value in np.logspace(-8, 2, 61))


@dataclass(frozen=True)
class RidgePath:
    """All ridge solutions of one regression at once.

    With the centred Gram matrix G = Q diag(e) Q^T, centred class sums C and B = Q^T C:
    W(lambda) = Q diag(1 / (e + lambda)) B.

    Attributes:
        eigenvalues: e, float64 [p].
        vectors: Q, float64 [p, p].
        rotated: B, float64 [p, s].
        target_energy: Sum of squares of the centred targets.
        samples: Number of samples N.
    """

    eigenvalues: NDArray[np.float64]
    vectors: NDArray[np.float64]
    rotated: NDArray[np.float64]
    target_energy: float
    samples: int

    @classmethod
    def factorise(
        cls,
        scatter: NDArray[np.float64],
        cross: NDArray[np.float64],
        target_energy: float,
        samples: int,
    ) -> RidgePath:
        """Factorises scatter [p, p] of centred features with cross products [p, s] to the targets."""
        values, vectors = torch.linalg.eigh(torch.from_numpy(scatter))
        basis = vectors.numpy()
        return cls(
            eigenvalues=np.maximum(values.numpy(), 0.0),
            vectors=basis,
            rotated=basis.T @ cross,
            target_energy=target_energy,
            samples=samples,
        )

    def absolute(self, relative: float) -> float:
        """A lambda in units of the mean eigenvalue, so that candidates do not depend on scale."""
        mean = float(self.eigenvalues.mean())
        return relative * (mean if mean > 0 else 1.0)

    def residual(self, penalty: float) -> tuple[float, float]:
        """Residual sum of squares over all targets, and effective degrees of freedom."""
        energy = np.square(self.rotated).sum(axis=1)
        inverse = 1.0 / (self.eigenvalues + penalty)
        explained = float(np.sum(energy * inverse * (2.0 - self.eigenvalues * inverse)))
        # The centring takes one degree of freedom more.
        freedom = float(np.sum(self.eigenvalues * inverse)) + 1.0
        return max(0.0, self.target_energy - explained), freedom

    def generalised_cross_validation(self, penalty: float) -> float:
        """GCV(lambda) = (RSS / N) / (1 - df / N)^2.

        Golub, Heath, Wahba: Generalized cross-validation as a method for choosing a good ridge
        parameter, Technometrics 1979.
        """
        residual, freedom = self.residual(penalty)
        slack = 1.0 - freedom / self.samples
        if slack <= 1e-3:
            return float("inf")
        return residual / self.samples / slack**2

    def choose(self) -> float:
        """The candidate with the smallest GCV among those with at most N/2 degrees of freedom.

        Closer to interpolation, numerator and denominator of GCV both vanish and it can prefer fits that
        are far too loose (with more random features than samples it often does).
        """
        candidates = [self.absolute(relative) for relative in CANDIDATES]
        scores = [
            self.generalised_cross_validation(penalty)
            if self.residual(penalty)[1] <= self.samples / 2
            else float("inf")
            for penalty in candidates
        ]
        if not np.isfinite(scores).any():
            return candidates[-1]
        return candidates[int(np.argmin(scores))]

    def weights(self, penalty: float) -> NDArray[np.float64]:
        """W(lambda), float64 [p, s]."""
        solution: NDArray[np.float64] = self.vectors @ (
            self.rotated / (self.eigenvalues + penalty)[:, None]
        )
        return solution


@dataclass(frozen=True)
class RidgeClassifier:
    """Regression of one-hot slots on centred features.

    Attributes:
        weights: float64 [p, s].
        bias: float64 [s]; -inf for a slot without samples.
        penalty: The lambda used, in the units of the Gram matrix.
    """

    weights: Tensor
    bias: Tensor
    penalty: float

    @classmethod
    def fit(
        cls,
        sums: NDArray[np.float64],
        gram: NDArray[np.float64],
        counts: NDArray[np.int64],
        *,
        penalty: float | None = None,
    ) -> RidgeClassifier:
        """Fits from sums [s, p], the Gram matrix [p, p] and counts [s].

        Args:
            sums: Sum of features per slot.
            gram: Sum of x x^T over all samples.
            counts: Samples per slot.
            penalty: lambda in units of the mean eigenvalue of the centred Gram matrix; None takes
                the candidate with the smallest generalised cross-validation score.
        """
        samples = max(1, int(counts.sum()))
        mean = sums.sum(axis=0) / samples
        share = counts / samples
        scatter = gram - samples * np.outer(mean, mean)
        cross = (sums - counts[:, None] * mean).T
        path = RidgePath.factorise(
            (scatter + scatter.T) / 2, cross, float(np.sum(counts * (1 - share))), samples
        )
        chosen = path.choose() if penalty is None else path.absolute(penalty)
        weights = path.weights(chosen)
        bias = share - mean @ weights
        bias[counts == 0] = -np.inf
        return cls(
            weights=torch.from_numpy(np.ascontiguousarray(weights)),
            bias=torch.from_numpy(bias),
            penalty=chosen,
        )

    def log_posterior(self, features: Tensor, temperature: float = 0.1) -> Tensor:
        """log p(slot | x), float64 [n, s], from features [n, p]: softmax of scores / temperature.

        Scores estimate indicators, so that one temperature fits every problem.
        """
        scores = features.to(torch.float64) @ self.weights + self.bias
        return torch.log_softmax(scores / temperature, dim=-1)
