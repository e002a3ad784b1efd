"""First-session whitening: a fixed affine map of the features, chosen from the first task alone.

Mean and inverse square root of the shrunk within-class covariance of the first task.  It is computed from that
task's sums, stays fixed for all later tasks and is stored in the bank, so nothing has to be learned again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from workers.errors import DataError
from workers.modeling.packing import unpack_upper
from workers.modeling.shrinkage import centred_scatter, shrunk_covariance
from workers.modeling.statistics import TaskStatistics

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True)
class Whitening:
    """x -> (x - mean) matrix.

    Attributes:
        mean: float64 [d].
        matrix: Symmetric, float64 [d, d].
        shrinkage: Weight of the identity in the covariance, in [0, 1].
    """

    mean: NDArray[np.float64]
    matrix: NDArray[np.float64]
    shrinkage: float

    @property
    def width(self) -> int:
        """Feature width d."""
        return int(self.mean.shape[0])

    @classmethod
    def from_statistics(cls, first_task: TaskStatistics) -> Whitening:
        """The whitening of a stream whose first task has these statistics.

        The within-class covariance is shrunk towards a multiple of the identity by oracle approximating
        shrinkage (closed form), so fewer samples than dimensions, constant features or a single class
        are no problem.

        Raises:
            DataError: The task has no samples.
        """
        if first_task.samples == 0:
            raise DataError("whitening: the first task has no training samples.")
        present = first_task.counts > 0
        counts = first_task.counts[present].astype(np.float64)
        means = first_task.sums[present] / counts[:, None]
        gram = unpack_upper(first_task.gram.sum(axis=0), first_task.width)
        scatter = centred_scatter(gram, means, counts)
        covariance, shrinkage = shrunk_covariance(scatter, float(counts.sum()) - len(counts))
        values, vectors = np.linalg.eigh(covariance)
        matrix = (vectors / np.sqrt(np.maximum(values, np.finfo(np.float64).tiny))) @ vectors.T
        return cls(
            mean=first_task.sums.sum(axis=0) / counts.sum(),
            matrix=(matrix + matrix.T) / 2,
            shrinkage=shrinkage,
        )

    def apply(self, features: Tensor) -> Tensor:
        """Whitened features: [n, d] of any float type -> float32 [n, d].

        Raises:
            DataError: The width differs from the one the whitening was fitted on.
        """
        if features.shape[-1] != self.width:
            raise DataError(
                f"whitening: features of width {features.shape[-1]} do not fit a whitening of "
                f"width {self.width}; use the backbone the bank was made with."
            )
        mean, matrix = self._tensors
        return (features.to(torch.float32) - mean) @ matrix

    def transform_means(self, means: NDArray[np.float64]) -> NDArray[np.float64]:
        """Means of whitened features from means of raw ones, exactly: [s, d] -> [s, d]."""
        return (means - self.mean) @ self.matrix

    def transform_scatter(self, scatter: NDArray[np.float64]) -> NDArray[np.float64]:
        """Centred scatter of whitened features from that of raw ones, exactly: [d, d] -> [d, d]."""
        return self.matrix @ scatter @ self.matrix

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Named arrays for storage."""
        return {
            "mean": self.mean,
            "matrix": self.matrix,
            "shrinkage": np.array([self.shrinkage], dtype=np.float64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Whitening:
        """Rebuilds what `to_arrays` gave.

        Raises:
            DataError: An array is missing.
        """
        missing = [name for name in ("mean", "matrix", "shrinkage") if name not in arrays]
        if missing:
            raise DataError(f"whitening: array {missing[0]!r} is missing; found {sorted(arrays)}.")
        return cls(
            mean=np.asarray(arrays["mean"]),
            matrix=np.asarray(arrays["matrix"]),
            shrinkage=float(np.asarray(arrays["shrinkage"])[0]),
        )

    @cached_property
    def _tensors(self) -> tuple[Tensor, Tensor]:
        return (
            torch.from_numpy(self.mean.astype(np.float32)),
            torch.from_numpy(self.matrix.astype(np.float32)),
        )
