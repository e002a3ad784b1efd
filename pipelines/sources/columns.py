"""Columns of Parquet, Arrow and Feather files, local or remote, read in pieces.

Local Arrow and Feather files are memory-mapped.  A Parquet column that fits a budget is decoded once and kept by the
process; a larger one is streamed row group by row group, each read once a call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipelines.sources.files import FileEntry, filesystem_of, is_remote, stat_file
from workers.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

COLUMN_BUDGET = 512 * 1024 * 1024
"""Bytes of decoded Parquet columns that one process keeps."""

TABLE_SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".ipc")
_BATCH_ROWS = 1024


@dataclass(frozen=True)
class TableFile:
    """One Parquet or Arrow file.

    Attributes:
        root: the URI whose file system and credentials open it.
        entry: what was listed.
        test_only: it was given as a file of test samples.
    """

    root: str
    entry: FileEntry
    test_only: bool = False

    def schema(self) -> pa.Schema:
        """The file's Arrow schema.

        Raises:
            DataError: the file is empty, damaged or of another format.
        """
        with self._opened() as opened:
            schema: pa.Schema = opened.schema_arrow if _is_parquet(opened) else opened.schema
        try:
            _ = schema.names
        except UnicodeDecodeError as error:
            raise DataError(f"{self.entry.location!r}: a column's name is not UTF-8") from error
        return schema

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Whole columns."""
        with self._opened() as opened:
            if _is_parquet(opened):
                return opened.read(columns=list(columns))
            return opened.select(list(columns))

    def chunks(
        self, column: str, rows: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[int, pa.Array]]:
        """A column in pieces, with the row at which each begins.

        Args:
            column: its name.
            rows: sorted rows of interest; row groups without any are not read.  None reads all.
        """
        with self._opened() as opened:
            if not _is_parquet(opened):
                yield from _numbered(opened[column].chunks)
                return
            offset = 0
            for group in range(opened.num_row_groups):
                count = opened.metadata.row_group(group).num_rows
                wanted = True
                if rows is not None:
                    low, high = np.searchsorted(rows, [offset, offset + count])
                    wanted = bool(high > low)
                if wanted:
                    batches = opened.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[column])
                    yield from _numbered((batch.column(0) for batch in batches), offset)
                offset += count

    def select(
        self, column: str, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], pa.Array]]:
        """Values of a column at any rows, in pieces: positions in ``rows`` and their values.

        Raises:
            DataError: the file has fewer rows than were listed.
        """
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        seen = 0
        for offset, chunk in _kept_chunks(self, column, ordered):
            low, high = np.searchsorted(ordered, [offset, offset + len(chunk)])
            if high > low:
                seen += high - low
                yield order[low:high], chunk.take(pa.array(ordered[low:high] - offset))
        if seen != len(rows):
            raise DataError(
                f"{self.entry.location!r} has fewer rows than when it was listed; start the run again"
            )

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """A ``ParquetFile`` or a (memory-mapped) ``Table``."""
        location = self.entry.location
        try:
            with _open(self.root, location) as source:
                magic = bytes(source.read(6))
                source.seek(0)
                if magic[:4] == b"PAR1":
                    import pyarrow.parquet as pq

                    yield pq.ParquetFile(source, pre_buffer=False)
                elif magic == b"ARROW1":
                    yield pa.ipc.open_file(source).read_all()
                else:
                    yield pa.ipc.open_stream(source).read_all()
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{location!r} cannot be read as Parquet, Arrow or Feather: {error}"
            ) from error


def table_file(root: str, location: str, relative: str) -> TableFile:
    """The file at a location, with the size and time it has now."""
    return TableFile(root, stat_file(root, location, relative))


def _is_parquet(opened: Any) -> bool:
    return not isinstance(opened, pa.Table)


def _open(root: str, location: str) -> Any:
    if not is_remote(location):
        return pa.memory_map(location)
    filesystem, path = filesystem_of(root, location)
    return filesystem.open_input_file(path)


def _numbered(arrays: Any, offset: int = 0) -> Iterator[tuple[int, pa.Array]]:
    for array in arrays:
        yield offset, array
        offset += len(array)


_kept: OrderedDict[tuple[FileEntry, str], list[tuple[int, pa.Array]]] = OrderedDict()
_kept_lock = threading.Lock()


def _kept_chunks(
    file: TableFile, column: str, rows: NDArray[np.int64]
) -> Iterable[tuple[int, pa.Array]]:
    """The chunks of a column, from memory where this process has decoded it before and it fits the budget."""
    key = (file.entry, column)
    with _kept_lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    if not _worth_keeping(file, column):
        return file.chunks(column, rows)
    chunks = list(file.chunks(column))
    with _kept_lock:
        _kept[key] = chunks
        while len(_kept) > 1 and _bytes(_kept) > COLUMN_BUDGET:
            _kept.popitem(last=False)
    return chunks


def _bytes(kept: OrderedDict[tuple[FileEntry, str], list[tuple[int, pa.Array]]]) -> int:
    return sum(array.nbytes for chunks in kept.values() for _, array in chunks)


def _worth_keeping(file: TableFile, column: str) -> bool:
    with file._opened() as opened:
        if not _is_parquet(opened):
            return False
        size = 0
        for group in range(opened.num_row_groups):
            data = opened.metadata.row_group(group)
            for at in range(data.num_columns):
                if data.column(at).path_in_schema.split(".", 1)[0] == column:
                    size += data.column(at).total_uncompressed_size
        return size <= COLUMN_BUDGET
