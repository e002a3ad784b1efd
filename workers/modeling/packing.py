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


def pack_upper(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The upper triangle of [size, size], row by row, as one vector."""
    size = matrix.shape[0]
    starts = _row_starts(size)
    packed = np.empty(packed_length(size), dtype=np.float64)
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
