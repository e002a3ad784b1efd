"""Everything seen so far: the state of the joint upper bounds, which are not exemplar-free."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.modeling.baselines.base import ClassTable


class Memory:
    """Keeps all training features and their class rows."""

    def __init__(self, table: ClassTable) -> None:
        self._table = table
        self._features: list[Tensor] = []
        self._rows: list[Tensor] = []

    def add(self, features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
        """Keeps the samples of a task."""
        samples, rows = self._table.enter(features, labels, classes)
        self._rows.append(rows)
        self._features.append(samples)

    def everything(self) -> tuple[Tensor, Tensor]:
        """All features [N, d] and class rows [N] seen so far."""
        return torch.cat(self._features), torch.cat(self._rows)
