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
        pooled = cls._of_one(statistics[0])
        for task in statistics[1:]:
            pooled = pooled.plus(task)
        return pooled

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
        if task.width != self.width:
            raise DataError(
                f"statistics of width {task.width} do not fit a bank of width {self.width}; "
                "use the backbone the bank was made with."
            )
        other = self._of_one(task)
        sums = gram = None
        if (
            self.projection == other.projection
            and self.projected_sums is not None
            and other.projected_sums is not None
            and self.projected_gram is not None
            and other.projected_gram is not None
        ):
            sums = np.concatenate([self.projected_sums, other.projected_sums])
            gram = self.projected_gram + other.projected_gram
        return PooledStatistics(
            counts=np.concatenate([self.counts, other.counts]),
            sums=np.concatenate([self.sums, other.sums]),
            gram=self.gram + other.gram,
            projection=self.projection if sums is not None else None,
            projected_sums=sums,
            projected_gram=gram,
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
        scatter = unpack_upper(self.gram, self.width)
        scatter -= (self.means.T * self.counts) @ self.means
        return scatter

    def whitened(
        self, whitening: Whitening | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Slot means [s, d] and within-slot scatter [d, d] of whitened features, exactly."""
        scatter = self.within_scatter()
        if whitening is None:
            return self.means, scatter
        return whitening.transform_means(self.means), whitening.transform_scatter(scatter)

    def total(self, whitening: Whitening | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Overall mean [d] and scatter around it [d, d] of whitened features, exactly."""
        mean = self.sums.sum(axis=0) / max(1, int(self.counts.sum()))
        scatter = unpack_upper(self.gram, self.width)
        scatter -= float(self.counts.sum()) * np.outer(mean, mean)
        if whitening is None:
            return mean, scatter
        return whitening.transform_means(mean[None])[0], whitening.transform_scatter(scatter)
