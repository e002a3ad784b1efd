"""Scatter matrices from sums, and closed-form shrinkage of a covariance matrix from the matrix alone.

Oracle approximating shrinkage needs only traces of the sample covariance, so it can be computed from
exemplar-free sums; Ledoit-Wolf needs fourth moments of the samples, which the sums do not hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOISE = 1e-12
"""Share of a Gram matrix below which its centred part is the round-off of centring."""


def centred_scatter(
    gram: NDArray[np.float64], means: NDArray[np.float64], counts: NDArray[Any]
) -> NDArray[np.float64]:
    """Scatter of samples around the means of their groups, float64 [d, d]; exactly zero where they have none.

    With one sample a group, or samples that are all alike, the difference of the sums is round-off.  Taken for a
    covariance, and inverted, it would decide everything.

    Args:
        gram: Sum of x x^T over all samples, float64 [d, d].
        means: Mean of each group, float64 [g, d].
        counts: Samples of each group [g].
    """
    scatter: NDArray[np.float64] = gram - (means.T * counts) @ means
    if np.trace(scatter) <= NOISE * np.trace(gram):
        return np.zeros_like(scatter)
    return scatter


def oas_intensity(covariance: NDArray[np.float64], degrees_of_freedom: float) -> float:
    """Weight of the scaled identity in oracle approximating shrinkage, within [0, 1].

    With p dimensions, n degrees of freedom and sample covariance S:
    rho = ((1 - 2/p) tr(S^2) + tr(S)^2) / ((n + 1 - 2/p) (tr(S^2) - tr(S)^2 / p)), at most 1.
    Chen, Wiesel, Eldar, Hero: Shrinkage algorithms for MMSE covariance estimation, IEEE TSP 2010, eq. 23.

    Args:
        covariance: Sample covariance S, float64 [p, p].
        degrees_of_freedom: Samples minus estimated means (N - C for a pooled within-class covariance).
    """
    size = covariance.shape[0]
    trace = float(np.trace(covariance))
    trace_of_square = float(np.einsum("ij,ij->", covariance, covariance))
    spread = trace_of_square - trace**2 / size
    numerator = (1 - 2 / size) * trace_of_square + trace**2
    denominator = (degrees_of_freedom + 1 - 2 / size) * spread
    if denominator <= 0 or spread <= 1e-12 * trace_of_square:
        return 1.0
    return float(min(1.0, max(0.0, numerator / denominator)))


def shrunk_covariance(
    scatter: NDArray[np.float64],
    degrees_of_freedom: float,
    intensity: float | None = None,
) -> tuple[NDArray[np.float64], float]:
    """An invertible covariance (1 - rho) S + rho tr(S)/p I from a scatter matrix, and rho.

    S = scatter / degrees_of_freedom.  Whatever the data, the result can be inverted: with no spread at all
    (one sample a class, constant features) it is the identity, and a floor of 1e-10 of the mean variance
    guards an intensity of zero against exactly constant features.

    Args:
        scatter: Sum of outer products of centred samples, float64 [p, p].
        degrees_of_freedom: Samples minus estimated means; less than 1 counts as 1.
        intensity: rho in [0, 1]; None takes `oas_intensity`.
    """
    size = scatter.shape[0]
    samples = max(1.0, float(degrees_of_freedom))
    covariance = (scatter + scatter.T) / (2 * samples)
    mean_variance = float(np.trace(covariance)) / size
    if not mean_variance > np.finfo(np.float64).tiny:
        return np.eye(size), 1.0
    rho = oas_intensity(covariance, samples) if intensity is None else float(intensity)
    shrunk = (1 - rho) * covariance
    shrunk[np.diag_indices(size)] += (rho + 1e-10) * mean_variance
    return shrunk, rho
