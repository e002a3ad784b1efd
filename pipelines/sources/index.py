"""Remembers the content digests of files by path, size and change time, so that a second listing reads none of them.

One Arrow file a folder or table, kept beside the features of the storage, followed by a digest of its bytes: a bank
says what it learned by these digests, so a damaged one must not pass for the data's.  The index is a convenience:
where it is missing, damaged or cannot be written, the digests are computed again; and a shard that reads a sample
checks its digest.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.sources.files import FileEntry, content_digest, file_digests
from workers.errors import StorageError
from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COLUMNS = ["path", "size", "mtime_ns", "content"]
_SEAL = 32
"""Bytes of the digest at a file's end."""


class DigestIndex:
    """Digests known for one folder or file of data.

    Args:
        cache_dir: folder or URI that holds the index files; None remembers nothing.
        name: what the index is of; any text.
    """

    def __init__(self, cache_dir: str | None, name: str) -> None:
        self._storage = None if cache_dir is None else Storage.open(cache_dir)
        self._path = f"{content_digest(name.encode())}.arrow"

    def of_files(self, root: str, files: Sequence[FileEntry]) -> list[str]:
        """The content digest of each file; only unknown or changed files are read.

        Raises:
            DataError: a file cannot be read.
        """
        known = self._known_files()
        found = [known.get((file.relative, file.size, file.mtime_ns)) for file in files]
        unknown = [at for at, digest in enumerate(found) if digest is None]
        fresh = file_digests(root, [files[at].location for at in unknown])
        for at, digest in zip(unknown, fresh, strict=True):
            found[at] = digest
        digests = [digest for digest in found if digest is not None]
        if unknown or len(known) != len(files):
            self._save(
                pa.table(
                    [
                        pa.array([file.relative for file in files], pa.string()),
                        pa.array([file.size for file in files], pa.int64()),
                        pa.array([file.mtime_ns for file in files], pa.int64()),
                        pa.array(digests, pa.string()),
                    ],
                    names=_COLUMNS,
                )
            )
        return digests

    def of_rows(
        self, file: FileEntry, count: int, compute: Callable[[], tuple[list[str], str]]
    ) -> tuple[list[str], str]:
        """The content digests of a file's rows and a note about them, computed when the file is new or has changed."""
        stamp = f"{file.size} {file.mtime_ns} {count}"
        table = self._load()
        if table is not None and table.column_names == ["content"]:
            metadata = table.schema.metadata or {}
            if metadata.get(b"stamp") == stamp.encode() and table.num_rows == count:
                return table["content"].to_pylist(), metadata[b"note"].decode()
        digests, note = compute()
        column = pa.table({"content": pa.array(digests, pa.string())})
        self._save(column.replace_schema_metadata({"stamp": stamp, "note": note}))
        return digests, note

    def _known_files(self) -> dict[tuple[str, int, int], str]:
        table = self._load()
        if table is None or table.column_names != _COLUMNS:
            return {}
        paths, sizes, times, digests = (column.to_pylist() for column in table.columns)
        return dict(zip(zip(paths, sizes, times, strict=True), digests, strict=True))

    def _load(self) -> pa.Table | None:
        if self._storage is None:
            return None
        try:
            if not self._storage.exists(self._path):
                return None
            data = self._storage.read_bytes(self._path)
            table, seal = data[:-_SEAL], data[-_SEAL:]
            if content_digest(table).encode() != seal:
                return None
            return pa.ipc.open_file(pa.BufferReader(table)).read_all()
        except (StorageError, pa.ArrowException):
            return None

    def _save(self, table: pa.Table) -> None:
        if self._storage is None:
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
        with contextlib.suppress(StorageError):
            write_atomic(self._storage, self._path, data + content_digest(data).encode())
