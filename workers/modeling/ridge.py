"""Ridge regression to one-hot classes from sums, with the regularisation chosen in closed form.

Generalised cross-validation needs only the Gram matrix and the class sums.  After one factorisation of the
Gram matrix any number of candidate lambdas costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from workers.errors import SettingsError
from workers.modeling.band import BandReduction
from workers.modeling.shrinkage import NOISE

if TYPE_CHECKING:
    from numpy.typing import NDArray

CANDIDATES = tuple(float(value) for value in np.logspace(-8, 2, 61))


@dataclass(frozen=True)
class RidgePath:
    """All ridge solutions W(lambda) = (G + lambda I)^-1 C of one regression at once.

    Attributes:
        reduction: Reduction of the centred Gram matrix G [p, p] with the centred cross products C [p, s].
        size: Number of features p.
        target_energy: Sum of squares of the centred targets.
        samples: Number of samples N.
        noise: What the mean eigenvalue of G would be if it were round-off alone.
    """

    reduction: BandReduction
    size: int
    target_energy: float
    samples: int
    noise: float = 0.0

    @classmethod
    def factorise(
        cls,
        scatter: NDArray[np.float64],
        cross: NDArray[np.float64],
        target_energy: float,
        samples: int,
        noise: float = 0.0,
    ) -> RidgePath:
        """Factorises scatter [p, p] of centred features with cross products [p, s] to the targets."""
        reduction = BandReduction(
            torch.from_numpy(np.ascontiguousarray(scatter)),
            torch.from_numpy(np.ascontiguousarray(cross)),
        )
        return cls(
            reduction=reduction,
            size=scatter.shape[0],
            target_energy=target_energy,
            samples=samples,
            noise=noise,
        )

    def absolute(self, relative: float) -> float:
        """A lambda in units of the mean eigenvalue, so that candidates do not depend on scale.

        Features that are all alike have none but round-off; there the unit is 1.
        """
        mean = self.reduction.trace / self.size
        return relative * (mean if mean > self.noise else 1.0)

    def residuals(
        self, penalties: Sequence[float]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Residual sums of squares over all targets, and effective degrees of freedom, [k] each.

        RSS = |Y|^2 - 2 tr(W^T C) + tr(W^T G W) = |Y|^2 - tr(W^T C) - lambda |W|^2, and
        df = tr (G + lambda I)^-1 G + 1 = p - lambda tr (G + lambda I)^-1 + 1, the one for the mean.
        """
        shifts = torch.tensor(list(penalties), dtype=torch.float64)
        solved = self.reduction.solve(shifts)
        explained = solved.products + shifts * solved.norms
        freedom = self.size - shifts * solved.traces + 1.0
        return (self.target_energy - explained).clamp_min(0.0).numpy(), freedom.numpy()

    def generalised_cross_validation(self, penalties: Sequence[float]) -> NDArray[np.float64]:
        """GCV(lambda) = (RSS / N) / (1 - df / N)^2 for fits with df <= N/2, else infinity.

        Golub, Heath, Wahba: Generalized cross-validation as a method for choosing a good ridge
        parameter, Technometrics 1979.  Closer to interpolation, numerator and denominator both vanish
        and GCV can prefer fits that are far too loose (with more random features than samples it
        often does); such fits are therefore left out.
        """
        residual, freedom = self.residuals(penalties)
        share = freedom / self.samples
        slack = 1.0 - np.minimum(share, 0.5)
        return np.where(share <= 0.5, residual / self.samples / np.square(slack), np.inf)

    def choose(self) -> float:
        """The candidate with the smallest GCV; the largest of them where none has df <= N/2.

        Candidates too small for the precision of the sums have no GCV and are left out.
        """
        penalties = [self.absolute(relative) for relative in CANDIDATES]
        scores = self.generalised_cross_validation(penalties)
        return penalties[int(np.argmin(scores))] if np.isfinite(scores).any() else penalties[-1]

    def weights(self, penalty: float) -> Tensor:
        """W(lambda), float64 [p, s].

        Raises:
            SettingsError: lambda is too small for features that are linearly dependent.
        """
        found = self.reduction.solution(penalty)
        if not bool(torch.isfinite(found).all()):
            raise SettingsError(
                f"ridge: the statistics are singular and a penalty of {penalty:.3g} is below their precision; set a "
                "larger penalty, or 'gcv'."
            )
        return found


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
            (scatter + scatter.T) / 2,
            cross,
            float(np.sum(counts * (1 - share))),
            samples,
            noise=NOISE * float(np.trace(gram)) / len(gram),
        )
        chosen = path.choose() if penalty is None else path.absolute(penalty)
        weights = path.weights(chosen)
        bias = torch.from_numpy(share) - torch.from_numpy(mean) @ weights
        bias[torch.from_numpy(counts == 0)] = -torch.inf
        return cls(
            weights=weights,
            bias=bias,
            penalty=chosen,
        )

    def log_posterior(self, features: Tensor, temperature: float = 0.1) -> Tensor:
        """log p(slot | x), float64 [n, s], from features [n, p]: softmax of scores / temperature.

        Scores estimate indicators, so that one temperature fits every problem.
        """
        scores = features.to(torch.float64) @ self.weights + self.bias
        return torch.log_softmax(scores / temperature, dim=-1)
