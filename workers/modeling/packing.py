"""Symmetric matrices as packed upper triangles: half the bytes, and sums of them stay sums."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def packed_length(size: int) -> int:
    """Number of entries of the upper triangle of a [size, size] matrix, diagonal included."""
    return size * (size + 1) // 2


@lru_cache(maxsize=8)
def _row_starts(size: int) -> tuple[int, ...]:
    return tuple(row * size - row * (row - 1) // 2 for row in range(size + 1))


def pack_upper(
    matrix: NDArray[np.float64], out: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The upper triangle of [size, size], row by row, as one vector (``out`` if given)."""
    size = matrix.shape[0]
    starts = _row_starts(size)
    packed = np.empty(packed_length(size), dtype=np.float64) if out is None else out
    for row in range(size):
        packed[starts[row] : starts[row + 1]] = matrix[row, row:]
    return packed


def unpack_upper(packed: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The symmetric [size, size] matrix of a packed upper triangle; exact inverse of `pack_upper`."""
    starts = _row_starts(size)
    matrix = np.empty((size, size), dtype=np.float64)
    for row in range(size):
        values = packed[starts[row] : starts[row + 1]]
        matrix[row, row:] = values
        matrix[row:, row] = values
    return matrix


class GramAccumulator:
    """Sums x^T x over blocks in float64, in two buffers that are used over and over.

    NumPy computes the product of a block with its own transpose as a symmetric rank update, half the
    work of a general product: float64 then costs about what a general product costs in float32.
    """

    def __init__(self, size: int) -> None:
        self._total = np.empty((size, size))
        self._product = np.empty((size, size))
        self._empty = True

    def add(self, block: NDArray[np.float64]) -> None:
        """Adds block^T block of a float64 [n, size] block."""
        if self._empty:
            np.matmul(block.T, block, out=self._total)
            self._empty = False
        else:
            np.matmul(block.T, block, out=self._product)
            self._total += self._product

    def pack_into(self, out: NDArray[np.float64]) -> None:
        """Writes the packed sum to ``out`` and starts anew."""
        if self._empty:
            out[:] = 0.0
        else:
            pack_upper(self._total, out)
        self._empty = True
