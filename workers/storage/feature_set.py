"""Many cached parts as one matrix, without copying them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workers.errors import DataError
from workers.storage.feature_file import FeaturePart

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

MATERIALISE_BELOW = 64 * 1024 * 1024
"""Sets of several parts up to this many bytes are copied into one matrix when rows are first gathered."""

_ROWS_FOR_A_PART = 6


class FeatureSet:
    """Rows of several parts seen as one matrix [n, d], without copying the parts."""

    def __init__(
        self,
        parts: Sequence[FeaturePart],
        part_index: NDArray[Any],
        row_index: NDArray[Any],
    ) -> None:
        """Row i of the set is row ``row_index[i]`` of ``parts[part_index[i]]``.

        Raises:
            DataError: the parts differ in width, or an index is out of range.
        """
        widths = sorted({part.width for part in parts})
        if len(widths) > 1:
            raise DataError(f"feature parts differ in width: {widths[0]} and {widths[1]}")
        self._parts = [part.features for part in parts]
        self._ids = [part.ids for part in parts]
        self._part = np.ascontiguousarray(part_index, dtype=np.int32)
        self._row = np.ascontiguousarray(row_index, dtype=np.int32)
        self._width = widths[0] if widths else 0
        self._matrix: NDArray[np.float32] | None = None
        if self._part.shape != self._row.shape or self._part.ndim != 1:
            raise DataError("a feature set needs one part and one row number for each of its rows")
        if len(self._part):
            lengths = np.array([len(part) for part in parts], dtype=np.int64)
            inside = (self._part >= 0) & (self._part < len(parts)) & (self._row >= 0)
            if not inside.all() or (self._row >= lengths[self._part]).any():
                raise DataError("a feature set's index points outside its parts")

    @classmethod
    def concatenate(cls, parts: Sequence[FeaturePart]) -> FeatureSet:
        """All rows of the parts, in order."""
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        part_index = np.repeat(np.arange(len(parts), dtype=np.int32), lengths)
        starts = np.cumsum(lengths) - lengths
        row_index = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths)
        return cls(parts, part_index, row_index)

    @classmethod
    def select(cls, parts: Sequence[FeaturePart], ids: Sequence[str] | pa.Array) -> FeatureSet:
        """The rows of these sample ids, in their order.

        Raises:
            DataError: an id is in none of the parts (the first is named).
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = cls.concatenate(parts)
        wanted = pa.array(ids, pa.string()) if not isinstance(ids, pa.Array) else ids
        have = whole.ids()
        place = pc.index_in(wanted, value_set=have)
        if place.null_count:
            missing = wanted[pc.index(pc.is_null(place), True).as_py()].as_py()
            raise DataError(
                f"sample '{missing}' has no features in these {len(parts)} parts: extract it first"
            )
        rows = place.to_numpy(zero_copy_only=False)
        return cls(parts, whole._part[rows], whole._row[rows])

    def __len__(self) -> int:
        return len(self._part)

    @property
    def width(self) -> int:
        """d, the length of a feature."""
        return self._width

    @property
    def nbytes(self) -> int:
        """Bytes of the set as one float32 matrix."""
        return len(self) * self._width * 4

    def ids(self) -> pa.Array:
        """The sample ids of the rows, [n] string."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self._ids:
            return pa.array([], pa.string())
        lengths = np.array([len(ids) for ids in self._ids], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        rows = starts[self._part] + self._row
        together = pa.concat_arrays([ids.cast(pa.string()) for ids in self._ids])
        if len(rows) == len(together) and np.array_equal(rows, np.arange(len(rows))):
            return together
        return pc.take(together, pa.array(rows))

    def gather(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Copies of some rows.

        Args:
            rows: integer row numbers, [k].

        Returns:
            [k, d] float32, C-contiguous and writable.
        """
        rows = np.asarray(rows)
        if self._matrix is None and len(self._parts) > 1 and self.nbytes <= MATERIALISE_BELOW:
            self.materialise()
        if self._matrix is not None:
            chosen: NDArray[np.float32] = self._matrix[rows]
            return chosen
        return self._collect(self._part[rows], self._row[rows])

    def materialise(self) -> NDArray[np.float32]:
        """The whole set as one matrix [n, d] float32, copied once and kept; read-only."""
        if self._matrix is None:
            self._matrix = self._collect(self._part, self._row)
            self._matrix.flags.writeable = False
        return self._matrix

    def _collect(self, parts: NDArray[np.int32], rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Rows from their parts, in the cheaper of two ways.

        A vectorised copy for each part costs about six times what one row costs; a small batch that is
        scattered over many parts is therefore copied row by row.
        """
        out = np.empty((len(rows), self._width), dtype=np.float32)
        if len(rows) < _ROWS_FOR_A_PART * len(self._parts):
            for i, (part, row) in enumerate(zip(parts.tolist(), rows.tolist(), strict=True)):
                out[i] = self._parts[part][row]
            return out
        order = np.argsort(parts, kind="stable")
        bounds = np.flatnonzero(np.diff(parts[order])) + 1
        for start, stop in itertools.pairwise([0, *bounds.tolist(), len(order)]):
            where = order[start:stop]
            if len(where):
                out[where] = self._parts[parts[where[0]]][rows[where]]
        return out
