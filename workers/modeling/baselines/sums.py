"""Class sums and one Gram matrix over everything seen: the state of the closed-form baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from workers.modeling.baselines.base import ClassTable
from workers.modeling.packing import unpack_upper
from workers.modeling.shrinkage import centred_scatter
from workers.modeling.statistics import TaskStatistics

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RunningSums:
    """Count and sum per class, Gram matrix over all classes, in float64.

    Args:
        width: Width of the features that are summed.
        table: Classes seen; rows follow it.
    """

    def __init__(self, width: int, table: ClassTable) -> None:
        self._table = table
        self.counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.sums: NDArray[np.float64] = np.zeros((0, width))
        self.gram: NDArray[np.float64] = np.zeros((width, width))

    def add(self, features: Tensor, rows: Tensor) -> None:
        """Adds features [n, width] whose classes have the table rows ``rows`` [n]."""
        present, positions = torch.unique(rows, return_inverse=True)
        task = TaskStatistics.from_features(
            features, positions, classes=len(present), granularity="task"
        )
        missing = len(self._table) - len(self.counts)
        self.counts = np.concatenate([self.counts, np.zeros(missing, dtype=np.int64)])
        self.sums = np.concatenate([self.sums, np.zeros((missing, self.sums.shape[1]))])
        self.counts[present.numpy()] += task.counts
        self.sums[present.numpy()] += task.sums
        self.gram += unpack_upper(task.gram[0], task.width)

    @property
    def means(self) -> NDArray[np.float64]:
        """Class means [C, width]; zero for a class without samples."""
        means: NDArray[np.float64] = self.sums / np.maximum(self.counts, 1)[:, None]
        return means

    @property
    def within_scatter(self) -> NDArray[np.float64]:
        """Scatter around the class means, summed over classes, [width, width]."""
        return centred_scatter(self.gram, self.means, self.counts)
