"""Statistics of all tasks of a bank, added up: what routers and Gaussian or ridge classifiers are fitted on.

A *slot* is one (task, class) pair.  In a class-incremental stream every class has one slot; in a
domain-incremental stream it has one in every task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from workers.errors import DataError
from workers.modeling.packing import unpack_upper
from workers.modeling.projection import ProjectionSpec
from workers.modeling.shrinkage import centred_scatter
from workers.modeling.statistics import TaskStatistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workers.modeling.whitening import Whitening


@dataclass(frozen=True)
class PooledStatistics:
    """Sums over every task, with one row a slot (tasks in order, classes in the order of their task).

    Attributes:
        counts: Samples per slot, int64 [s].
        sums: Sum of raw features per slot, float64 [s, d].
        gram: Packed sum of x x^T over everything, float64 [d(d+1)/2].
        projection: Random feature space of the next two; None when the tasks do not share one.
        projected_sums: float64 [s, p] or None.
        projected_gram: Packed, float64 [p(p+1)/2] or None.
    """

    counts: NDArray[np.int64]
    sums: NDArray[np.float64]
    gram: NDArray[np.float64]
    projection: ProjectionSpec | None = None
    projected_sums: NDArray[np.float64] | None = None
    projected_gram: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, statistics: Sequence[TaskStatistics]) -> PooledStatistics:
        """Pools the statistics of tasks in bank order.

        Raises:
            DataError: There are none, or their widths differ.
        """
        if not statistics:
            raise DataError("statistics: the bank holds none; learn a task first.")
        return cls._of_one(statistics[0]).plus_all(statistics[1:])

    @classmethod
    def _of_one(cls, task: TaskStatistics) -> PooledStatistics:
        return cls(
            counts=task.counts,
            sums=task.sums,
            gram=task.gram.sum(axis=0),
            projection=task.projection,
            projected_sums=task.projected_sums,
            projected_gram=task.projected_gram,
        )

    def plus(self, task: TaskStatistics) -> PooledStatistics:
        """The pool with one more task appended; costs one addition, whatever the number of tasks.

        Raises:
            DataError: The widths differ.
        """
        return self.plus_all([task])

    def plus_all(self, statistics: Sequence[TaskStatistics]) -> PooledStatistics:
        """The pool with tasks appended in order; the same bytes as appending one after the other.

        Raises:
            DataError: The widths differ.
        """
        if not statistics:
            return self
        for task in statistics:
            if task.width != self.width:
                raise DataError(
                    f"statistics of width {task.width} do not fit a bank of width {self.width}; "
                    "use the backbone the bank was made with."
                )
        others = [self._of_one(task) for task in statistics]
        gram = self.gram.copy()
        for other in others:
            gram += other.gram
        pools = [self, *others]
        projected = all(
            pool.projection == self.projection
            and pool.projected_sums is not None
            and pool.projected_gram is not None
            for pool in pools
        )
        return PooledStatistics(
            counts=np.concatenate([pool.counts for pool in pools]),
            sums=np.concatenate([pool.sums for pool in pools]),
            gram=gram,
            projection=self.projection if projected else None,
            projected_sums=_joined([pool.projected_sums for pool in pools]) if projected else None,
            projected_gram=_added([pool.projected_gram for pool in pools]) if projected else None,
        )

    @property
    def width(self) -> int:
        """Feature width d."""
        return int(self.sums.shape[1])

    @property
    def slots(self) -> int:
        """Number of slots s."""
        return int(self.sums.shape[0])

    @cached_property
    def means(self) -> NDArray[np.float64]:
        """Mean of raw features per slot, float64 [s, d]; zero for a slot without samples."""
        means: NDArray[np.float64] = self.sums / np.maximum(self.counts, 1)[:, None]
        return means

    @property
    def degrees_of_freedom(self) -> int:
        """Samples minus estimated means."""
        return int(self.counts.sum() - np.count_nonzero(self.counts))

    def within_scatter(self) -> NDArray[np.float64]:
        """Sum over slots of the scatter around the slot's own mean, raw features, float64 [d, d]."""
        return centred_scatter(unpack_upper(self.gram, self.width), self.means, self.counts)

    def whitened(
        self, whitening: Whitening | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Slot means [s, d] and within-slot scatter [d, d] of whitened features, exactly."""
        scatter = self.within_scatter()
        if whitening is None:
            return self.means, scatter
        return whitening.transform_means(self.means), whitening.transform_scatter(scatter)


def _joined(arrays: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64]:
    return np.concatenate([array for array in arrays if array is not None])


def _added(arrays: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64]:
    """The sum, added up from the left."""
    first, *others = (array for array in arrays if array is not None)
    total: NDArray[np.float64] = first.copy()
    for array in others:
        total += array
    return total
