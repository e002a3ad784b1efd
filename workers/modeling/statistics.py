"""Sufficient statistics of a task: all that routers keep of its training samples.

A count and a sum per class and Gram matrices.  They are plain sums, held in float64 and in the raw feature
space, so statistics of shards, classes or tasks are merged by adding them, in any order, and a class or task
is forgotten exactly by leaving it out of the sum.  No sample is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from workers.errors import BankError, DataError
from workers.modeling.packing import GramAccumulator, packed_length
from workers.modeling.projection import ProjectionSpec, RandomProjection
from workers.modeling.statistics_settings import Granularity

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_CHUNK_BYTES = 16 * 2**20


class FeatureRows(Protocol):
    """Feature rows that are fetched when needed, such as a memory-mapped feature set."""

    def __len__(self) -> int: ...

    def gather(self, rows: NDArray[np.int64]) -> NDArray[Any]: ...


@dataclass(frozen=True)
class TaskStatistics:
    """Sums over the training samples of one task.

    Attributes:
        counts: Samples per class, int64 [c].
        sums: Sum of features per class, float64 [c, d].
        gram: Packed upper triangle of the sum of x x^T, float64 [c, d(d+1)/2] (granularity "class")
            or [1, d(d+1)/2] (granularity "task").
        projection: The random feature space of the next two, or None.
        projected_sums: Sum of phi(x) per class, float64 [c, p], or None.
        projected_gram: Packed upper triangle of the sum of phi(x) phi(x)^T over the whole task,
            float64 [p(p+1)/2], or None.  One a task whatever the granularity: it is large.
    """

    counts: NDArray[np.int64]
    sums: NDArray[np.float64]
    gram: NDArray[np.float64]
    projection: ProjectionSpec | None = None
    projected_sums: NDArray[np.float64] | None = None
    projected_gram: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.gram.shape != (self.gram.shape[0], packed_length(self.width)) or (
            self.gram.shape[0] not in (1, self.classes)
        ):
            raise DataError(
                f"statistics: the Gram matrix has shape {self.gram.shape}, which does not fit "
                f"{self.classes} classes of width {self.width}."
            )

    @property
    def classes(self) -> int:
        """Number of classes c."""
        return int(self.sums.shape[0])

    @property
    def width(self) -> int:
        """Feature width d."""
        return int(self.sums.shape[1])

    @property
    def samples(self) -> int:
        """Number of samples summed."""
        return int(self.counts.sum())

    @property
    def granularity(self) -> Granularity:
        """ "class" when every class has its own Gram matrix (always so for a single class)."""
        return "class" if self.gram.shape[0] == self.classes else "task"

    @classmethod
    def from_features(
        cls,
        features: NDArray[Any] | Tensor | FeatureRows,
        labels: NDArray[Any] | Tensor | Sequence[int],
        *,
        classes: int,
        granularity: Granularity = "class",
        projection: RandomProjection | None = None,
    ) -> TaskStatistics:
        """Sums features [n, d] (any float type) with labels [n] in 0..classes-1.

        Works in chunks of 16 MiB, accumulated in float64, so memory stays bounded; with granularity
        "class" the sums of a class do not depend on the other classes.

        Raises:
            DataError: NaN or infinite features, labels out of range, or lengths that differ.
        """
        targets = np.asarray(labels, dtype=np.int64)
        length = len(features)
        if targets.shape != (length,):
            raise DataError(
                f"statistics: {length} features came with labels of shape {targets.shape}; "
                "give one label a feature."
            )
        if length and not (targets.min() >= 0 and targets.max() < classes):
            raise DataError(
                f"statistics: labels reach from {targets.min()} to {targets.max()}, but the task "
                f"has {classes} classes numbered from 0."
            )
        if length == 0:
            raise DataError(
                "statistics: the task has no training samples; remove it from the stream."
            )
        width = _width(features)
        order = np.argsort(targets, kind="stable").astype(np.int64)
        counts = np.bincount(targets, minlength=classes).astype(np.int64)
        sums = np.zeros((classes, width))
        grams = np.zeros((classes if granularity == "class" else 1, packed_length(width)))
        accumulator = GramAccumulator(width)
        groups = np.split(order, np.cumsum(counts)[:-1]) if granularity == "class" else [order]
        for position, rows in enumerate(groups):
            for part, chunk in _chunks(features, rows, width):
                block = chunk.astype(np.float64)
                accumulator.add(block)
                _add_by_class(sums, block, targets[part])
            accumulator.pack_into(grams[position])
        if projection is None:
            return cls(counts=counts, sums=sums, gram=grams)
        size = projection.spec.size
        projected_sums = np.zeros((classes, size))
        projected_gram = np.zeros(packed_length(size))
        accumulator = GramAccumulator(size)
        for part, chunk in _chunks(features, order, size):
            block = projection(torch.from_numpy(np.ascontiguousarray(chunk))).numpy()
            accumulator.add(block)
            _add_by_class(projected_sums, block, targets[part])
        accumulator.pack_into(projected_gram)
        return cls(
            counts=counts,
            sums=sums,
            gram=grams,
            projection=projection.spec,
            projected_sums=projected_sums,
            projected_gram=projected_gram,
        )

    def __add__(self, other: TaskStatistics) -> TaskStatistics:
        """Statistics of both sets of samples together (same classes in the same order).

        Raises:
            DataError: They differ in classes, width, granularity or random feature space.
        """
        if self.gram.shape != other.gram.shape or self.classes != other.classes:
            raise DataError(
                f"statistics cannot be merged: {self._describe()} and {other._describe()}; "
                "collect both with the same classes, features and granularity."
            )
        if self.projection != other.projection:
            raise DataError(
                f"statistics cannot be merged: random features {self.projection} and "
                f"{other.projection} differ."
            )
        projected = self.projected_sums is not None and other.projected_sums is not None
        return TaskStatistics(
            counts=self.counts + other.counts,
            sums=self.sums + other.sums,
            gram=self.gram + other.gram,
            projection=self.projection,
            projected_sums=_sum(self.projected_sums, other.projected_sums) if projected else None,
            projected_gram=_sum(self.projected_gram, other.projected_gram) if projected else None,
        )

    def without_class(self, position: int) -> TaskStatistics:
        """Statistics as if class ``position`` had never been seen; random features are dropped.

        Raises:
            BankError: The Gram matrix was summed over the whole task, so no class can be taken out.
        """
        if self.classes > 1 and self.gram.shape[0] == 1:
            raise BankError(
                "statistics: this task keeps one Gram matrix for all its classes, so a single class "
                "cannot be taken out; unlearn the whole task, or collect with granularity 'class'."
            )
        keep = np.arange(self.classes) != position
        return TaskStatistics(counts=self.counts[keep], sums=self.sums[keep], gram=self.gram[keep])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Named arrays for storage: count, sum, gram and, if there, the projected ones."""
        arrays: dict[str, NDArray[Any]] = {
            "count": self.counts,
            "sum": self.sums,
            "gram": self.gram,
        }
        if self.projection is not None:
            assert self.projected_sums is not None
            assert self.projected_gram is not None
            arrays["projected.spec"] = self.projection.to_array()
            arrays["projected.sum"] = self.projected_sums
            arrays["projected.gram"] = self.projected_gram
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> TaskStatistics:
        """Rebuilds what `to_arrays` gave; arrays are used as they are, not copied.

        Raises:
            DataError: An array is missing or its shape does not fit.
        """
        missing = [name for name in ("count", "sum", "gram") if name not in arrays]
        if missing:
            raise DataError(f"statistics: array {missing[0]!r} is missing; found {sorted(arrays)}.")
        spec = arrays.get("projected.spec")
        return cls(
            counts=np.asarray(arrays["count"]),
            sums=np.asarray(arrays["sum"]),
            gram=np.asarray(arrays["gram"]),
            projection=ProjectionSpec.from_array(spec) if spec is not None else None,
            projected_sums=arrays["projected.sum"] if spec is not None else None,
            projected_gram=arrays["projected.gram"] if spec is not None else None,
        )

    def _describe(self) -> str:
        return f"{self.classes} classes of width {self.width} with a Gram matrix per {self.granularity}"


def merge(statistics: Sequence[TaskStatistics]) -> TaskStatistics:
    """The sum of statistics of the same classes, such as those of a task's shards.

    Raises:
        DataError: The sequence is empty or its members do not fit together.
    """
    if not statistics:
        raise DataError("statistics: nothing to merge; give at least one.")
    total = statistics[0]
    for part in statistics[1:]:
        total = total + part
    return total


def _sum(
    left: NDArray[np.float64] | None, right: NDArray[np.float64] | None
) -> NDArray[np.float64] | None:
    return None if left is None or right is None else left + right


def _width(features: NDArray[Any] | Tensor | FeatureRows) -> int:
    if isinstance(features, torch.Tensor | np.ndarray):
        if features.ndim != 2:
            raise DataError(
                f"statistics: features have shape {tuple(features.shape)}; [samples, width] is needed."
            )
        return int(features.shape[1])
    return int(features.gather(np.zeros(1, dtype=np.int64)).shape[1])


def _add_by_class(
    sums: NDArray[np.float64], block: NDArray[np.float64], classes: NDArray[np.int64]
) -> None:
    """Adds rows of a block to the sums of their classes; ``classes`` [n] ascends."""
    starts = np.flatnonzero(np.diff(classes, prepend=-1))
    sums[classes[starts]] += np.add.reduceat(block, starts, axis=0)


def _chunks(
    features: NDArray[Any] | Tensor | FeatureRows, rows: NDArray[np.int64], width: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Rows in chunks of bounded size, with their numbers, checked for NaN and infinity."""
    step = max(64, _CHUNK_BYTES // (8 * width))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        if isinstance(features, torch.Tensor):
            chunk = features[torch.from_numpy(part)].detach().cpu().numpy()
        elif isinstance(features, np.ndarray):
            chunk = features[part]
        else:
            chunk = features.gather(part)
        finite = np.isfinite(chunk)
        if not finite.all():
            bad = int(part[np.flatnonzero(~finite.all(axis=1))].min())
            raise DataError(
                f"statistics: the feature of sample {bad} holds NaN or infinite values; "
                "check the backbone's precision or the feature file."
            )
        yield part, chunk
