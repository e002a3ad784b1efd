"""Remembers the content digests of files by path, size and change time, so that a second listing reads none of them.

One Arrow file a folder or table, written beside the features of the storage.  It is a convenience: when it is
missing, damaged or cannot be written, the digests are computed again.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.sources.files import (
    FileEntry,
    content_digest,
    file_digests,
    filesystem_of,
    is_remote,
    locate,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class DigestIndex:
    """Digests known for one folder or file of data.

    Args:
        cache_dir: folder or URI that holds the index files; None remembers nothing.
        name: what the index is of; any text.
    """

    def __init__(self, cache_dir: str | None, name: str) -> None:
        self._root = cache_dir
        self._name = f"{content_digest(name.encode())}.arrow"

    def digests(self, root: str, files: Sequence[FileEntry]) -> list[str]:
        """The content digest of each file; only unknown or changed files are read."""
        known = self._known()
        found = [known.get((file.relative, file.size, file.mtime_ns)) for file in files]
        unknown = [at for at, digest in enumerate(found) if digest is None]
        fresh = file_digests(root, [files[at].location for at in unknown])
        for at, digest in zip(unknown, fresh, strict=True):
            found[at] = digest
        digests = [digest for digest in found if digest is not None]
        if unknown or len(known) != len(files):
            self.save(
                pa.table(
                    {
                        "path": [file.relative for file in files],
                        "size": pa.array([file.size for file in files], pa.int64()),
                        "mtime_ns": pa.array([file.mtime_ns for file in files], pa.int64()),
                        "content": digests,
                    }
                )
            )
        return digests

    def _known(self) -> dict[tuple[str, int, int], str]:
        table = self.load()
        if table is None or table.column_names != ["path", "size", "mtime_ns", "content"]:
            return {}
        paths, sizes, times, digests = (column.to_pylist() for column in table.columns)
        return dict(zip(zip(paths, sizes, times, strict=True), digests, strict=True))

    def load(self) -> pa.Table | None:
        """The stored table, or None when there is none that can be read."""
        if self._root is None:
            return None
        try:
            filesystem, path = filesystem_of(self._root, f"{locate(self._root)}/{self._name}")
            with filesystem.open_input_file(path) as source:
                return pa.ipc.open_file(source).read_all()
        except (OSError, pa.ArrowException):
            return None

    def save(self, table: pa.Table) -> None:
        """Replace the stored table, atomically on local file systems; a failure to write is no error."""
        if self._root is None:
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        try:
            filesystem, path = filesystem_of(self._root, f"{locate(self._root)}/{self._name}")
            if is_remote(self._root):
                with filesystem.open_output_stream(path) as stream:
                    stream.write(data)
            else:
                _write_local(path, data)
        except OSError:
            return


def _write_local(path: str, data: pa.Buffer) -> None:
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(memoryview(data))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
