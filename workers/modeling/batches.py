"""Mini-batches for learning: an epoch's features, gathered once into contiguous blocks.

Small feature sets are read into memory once; larger ones are gathered block by block, so that a trainer's memory
does not grow with the feature set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.errors import DataError

MATERIALISE_BYTES = 256 * 2**20
BLOCK_BYTES = 16 * 2**20
PASS_BYTES = 2 * 2**20


class FeatureView(Protocol):
    """Features [n, d] read by row number; ``workers.storage.features.FeatureSet`` is one."""

    def __len__(self) -> int: ...

    def gather(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Rows as float32 [k, d], in the order asked for."""
        ...


View = FeatureView | Tensor


class ViewReader:
    """Rows of one view as tensors of the learner's dtype and device."""

    def __init__(
        self, view: View, *, dtype: torch.dtype, device: torch.device, budget: int
    ) -> None:
        self._view = view
        self._dtype = dtype
        self._device = device
        self.length = len(view)
        self.width = 0
        self.bytes = 0
        if self.length == 0:
            raise DataError("a task has no samples; every task needs at least one training sample")
        first = self._gather(np.zeros(1, dtype=np.int64))
        self.width = first.shape[1]
        size = self.length * self.width * first.element_size()
        self._whole: Tensor | None = None
        if isinstance(view, Tensor) or size <= budget:
            self._whole = self._gather(np.arange(self.length))
            self.bytes = 0 if isinstance(view, Tensor) else size

    def empty(self, rows: int) -> Tensor:
        """An empty [rows, width] tensor of this view's dtype and device."""
        return torch.empty(rows, self.width, dtype=self._dtype, device=self._device)

    def read(self, rows: Tensor, out: Tensor) -> None:
        """Write rows into ``out`` [k, width]."""
        if self._whole is None:
            out.copy_(self._gather(rows.cpu().numpy()))
        else:
            torch.index_select(self._whole, 0, rows.to(self._device), out=out)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """All rows in order, in blocks small enough for a cache."""
        size = max(1, PASS_BYTES // (self.width * 4))
        for start in range(0, self.length, size):
            rows = slice(start, min(start + size, self.length))
            if self._whole is None:
                yield rows, self._gather(np.arange(rows.start, rows.stop))
            else:
                yield rows, self._whole[rows]

    def _gather(self, rows: NDArray[np.int64]) -> Tensor:
        if isinstance(self._view, Tensor):
            block = self._view.detach()
            if len(rows) != self.length:
                block = block[torch.from_numpy(rows)]
        else:
            block = torch.from_numpy(np.ascontiguousarray(self._view.gather(rows)))
        if block.dim() != 2 or (self.width and block.shape[1] != self.width):
            raise DataError(
                f"features have shape {tuple(block.shape)}; learning needs [samples, width]"
            )
        block = block.to(device=self._device, dtype=self._dtype)
        if not bool(torch.isfinite(block.sum())) and not bool(torch.isfinite(block).all()):
            raise DataError(
                "features hold NaN or infinite values; extract them anew or mend the source"
            )
        return block


@dataclass(frozen=True)
class TaskFeatures:
    """A task's training views, the view for class means, and its labels.

    Attributes:
        views: epoch e reads ``views[e % len(views)]``.
        test: the view that class means are taken from.
        labels: int64 [n], rows of the head.
    """

    views: tuple[ViewReader, ...]
    test: ViewReader
    labels: Tensor

    @property
    def length(self) -> int:
        return self.test.length

    @property
    def width(self) -> int:
        return self.test.width


class ViewPool:
    """Opens views, each object once, materialising within one budget."""

    def __init__(self, *, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._left = MATERIALISE_BYTES
        self._opened: dict[int, ViewReader] = {}

    def open(self, view: View) -> ViewReader:
        """The reader of a view; the same for the same object."""
        if id(view) not in self._opened:
            reader = ViewReader(view, dtype=self._dtype, device=self._device, budget=self._left)
            self._left -= reader.bytes
            self._opened[id(view)] = reader
        return self._opened[id(view)]

    def task(
        self, views: Sequence[View], labels: Tensor, classes: int, test_view: View | None
    ) -> TaskFeatures:
        """A task's features, checked.

        Raises:
            DataError: no view, views of different lengths or widths, labels that do not fit, or
                features that are not finite.
        """
        if not views:
            raise DataError("a task has no feature view; give at least one")
        readers = tuple(self.open(view) for view in views)
        test = readers[0] if test_view is None else self.open(test_view)
        shapes = {(reader.length, reader.width) for reader in (*readers, test)}
        if len(shapes) > 1:
            raise DataError(
                f"the views of a task differ in shape ({sorted(shapes)}); "
                "all must hold the same samples at the same width"
            )
        if labels.shape != (test.length,) or labels.dtype != torch.int64:
            raise DataError(
                f"labels have shape {tuple(labels.shape)} and dtype {labels.dtype} for "
                f"{test.length} samples; give int64 labels, one a sample"
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= classes:
            raise DataError(f"labels span {low}..{high}, outside the classes 0..{classes - 1}")
        return TaskFeatures(readers, test, labels.to(self._device))


@dataclass(frozen=True)
class Batch:
    """One step's samples.

    Attributes:
        features: [b, d] for one module, [m, b, d] for m.
        labels: int64 [b, 1] or [m, b, 1].
        size: samples of the whole batch, over all ranks.
    """

    features: Tensor
    labels: Tensor
    size: int


class BatchPlan:
    """How epochs are cut into batches, of which a rank sees every world-th row.

    Blocks of batches are gathered into buffers that are used again, so a batch is valid until the next
    block: for the step it is handed out for.

    Args:
        tasks: m tasks of equal length and width.
        batch_size: samples of a batch over all ranks.
        rank, world: which rows of each batch are ours.

    Attributes:
        sizes: samples of each batch of an epoch, over all ranks.
        steps: how many batches that is.
    """

    def __init__(
        self, tasks: Sequence[TaskFeatures], batch_size: int, *, rank: int = 0, world: int = 1
    ) -> None:
        self._tasks = tasks
        self._length = tasks[0].length
        self._batch_size = batch_size = min(batch_size, max(1, self._length))
        self._rank, self._world = rank, world
        starts = range(0, self._length, batch_size)
        self.sizes = [min(batch_size, self._length - start) for start in starts]
        self.steps = len(self.sizes)
        row_bytes = tasks[0].width * 4 * len(tasks)
        self._block_steps = min(self.steps, max(1, BLOCK_BYTES // (row_bytes * batch_size)))
        self._buffer: Tensor | None = None

    def epoch(self, orders: Sequence[Tensor], epoch: int) -> Iterator[Batch]:
        """Batches of one epoch, in m given permutations of the samples; the epoch chooses the view."""
        for first in range(0, self.steps, self._block_steps):
            last = min(first + self._block_steps, self.steps)
            sizes = self.sizes[first:last]
            block = slice(first * self._batch_size, first * self._batch_size + sum(sizes))
            rows = torch.stack([self._own(order[block], sizes) for order in orders])
            features, labels = self._gather(rows, epoch)
            local = [len(range(self._rank, size, self._world)) for size in sizes]
            yield from map(
                Batch,
                torch.split(features, local, dim=-2),
                torch.split(labels, local, dim=-2),
                sizes,
            )

    def _own(self, order: Tensor, sizes: list[int]) -> Tensor:
        if self._world == 1:
            return order
        return torch.cat([part[self._rank :: self._world] for part in torch.split(order, sizes)])

    def _gather(self, rows: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        count, length = rows.shape
        if self._buffer is None:
            first = self._tasks[0].test
            self._buffer = first.empty(self._block_steps * self._batch_size * count)
        features = self._buffer[: count * length].view(count, length, -1)
        for index, task in enumerate(self._tasks):
            task.views[epoch % len(task.views)].read(rows[index], out=features[index])
        labels = torch.stack(
            [
                task.labels[row.to(task.labels.device)]
                for task, row in zip(self._tasks, rows, strict=True)
            ]
        ).unsqueeze(-1)
        return (features[0], labels[0]) if count == 1 else (features, labels)


def as_order(order: Any, *, epochs: int, length: int) -> Tensor:
    """A given mini-batch order [epochs, n] as a tensor, checked to be permutations."""
    given = torch.as_tensor(np.asarray(order), dtype=torch.int64)
    identity = torch.arange(length)
    if given.shape != (epochs, length) or not bool((given.sort(dim=1).values == identity).all()):
        raise DataError(
            f"the order has shape {tuple(given.shape)}; it must be a permutation of "
            f"{length} samples for each of {epochs} epochs"
        )
    return given
