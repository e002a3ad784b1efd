"""Where a run keeps its files: one root directory on any pyarrow filesystem.

Local roots go through ``os`` because durability needs fsync and because ``luca bank list`` should not pay for
importing pyarrow; every other URI goes through ``pyarrow.fs``.  The few primitives that change files
(``create_file``, ``rename``, ``link``, ``sync_directory``, ``touch``, ``delete``) are methods, so that a test can fail or
stop any single step.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from workers.errors import StorageError
from workers.storage.faults import IN_FOLDER, IN_STORAGE, Verb, explained, fault, reason

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

TEMPORARY_SUFFIX = ".tmp"
"""Names ending so are half-written files of a live or dead writer; readers ignore them."""

_TEMPORARY = re.compile(r"(.*/)?\.(.+)\.[0-9a-f]{16}\.tmp", re.DOTALL)

_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})


@dataclass(frozen=True)
class Entry:
    """One file or directory below a listed directory.

    ``path`` is relative to the storage root; ``modified`` is seconds since the epoch by the storage's own clock
    (0.0 when the filesystem does not say).
    """

    path: str
    size: int
    is_directory: bool
    modified: float

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class Storage:
    """A root directory and everything below it; paths are relative, ``/``-separated and cannot leave the root.

    A storage can be pickled and handed to other processes.
    """

    def __init__(self, root: str, fs: pafs.FileSystem | None, uri: str) -> None:
        """Use :meth:`open`; ``fs`` None means the local disk."""
        self.root = root
        self.uri = uri
        self._fs = fs
        self._instead = IN_STORAGE

    @classmethod
    def open(cls, where: str | os.PathLike[str] | tuple[pafs.FileSystem, str]) -> Storage:
        """A storage at a local path, a URI that pyarrow knows (``s3://bucket/prefix``), or (filesystem, root).

        Nothing is created and, for a local path, nothing is touched.

        Raises:
            StorageError: the URI cannot be understood or its filesystem cannot be reached.
        """
        if isinstance(where, tuple):
            return cls._from_filesystem(*where)
        text = os.fspath(where)
        if not text:
            raise StorageError(
                "storage is empty: give a directory or a URI such as s3://bucket/prefix"
            )
        scheme, separator, rest = text.partition("://")
        if not separator:
            return cls(os.path.abspath(os.path.expanduser(text)), None, text)
        if scheme == "file":
            if not rest.startswith("/"):
                raise StorageError(
                    f"storage '{text}' is not absolute: write file:///path or a plain path"
                )
            return cls(os.path.normpath(_unquote(rest)), None, text)
        import pyarrow as pa
        import pyarrow.fs as pafs

        try:
            fs, root = pafs.FileSystem.from_uri(text)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise StorageError(
                f"storage '{text}' cannot be opened: {reason(error)}; "
                "give a directory or a URI that pyarrow supports, such as s3://bucket/prefix"
            ) from error
        if fs.type_name in _OBJECT_STORES and not root.strip("/"):
            raise StorageError(f"storage '{text}' names no bucket: write {scheme}://bucket/prefix")
        return cls(root.rstrip("/"), fs, text)

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str]) -> Storage:
        """A local folder that is not the user's `storage`; messages do not advise to choose another one."""
        path = os.path.abspath(folder)
        found = cls(path, None, path)
        found._instead = IN_FOLDER
        return found

    @classmethod
    def _from_filesystem(cls, fs: pafs.FileSystem, root: str) -> Storage:
        import pyarrow.fs as pafs

        while isinstance(fs, pafs.SubTreeFileSystem):
            root = f"{fs.base_path.rstrip('/')}/{root.lstrip('/')}"
            fs = fs.base_fs
        if isinstance(fs, pafs.LocalFileSystem):
            return cls(os.path.abspath(root), None, root)
        root = root.rstrip("/")
        return cls(root, fs, f"{fs.type_name}://{root}")

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"

    # -- where things are ------------------------------------------------------------------------------------

    @property
    def is_local(self) -> bool:
        """True when files are plain local files that can be mapped and renamed."""
        return self._fs is None

    @property
    def is_object_store(self) -> bool:
        """True when a finished upload appears whole by itself, so that no rename is needed (nor cheap)."""
        return self._fs is not None and self._fs.type_name in _OBJECT_STORES

    def full_path(self, path: str = "") -> str:
        """The path as the filesystem knows it.

        Raises:
            StorageError: the path is absolute or steps outside the root.
        """
        relative = check_relative(path)
        if not relative:
            return self.root
        return f"{self.root}/{relative}" if self.root else relative

    def local_path(self, path: str = "") -> Path:
        """The local file behind a path.

        Raises:
            StorageError: the storage is not local, or the path leaves the root.
        """
        if not self.is_local:
            raise StorageError(f"storage '{self.uri}' is not a local directory")
        return Path(self.full_path(path))

    def describe(self, path: str = "") -> str:
        """The path as a user knows it, for messages."""
        return (
            self.full_path(path)
            if self.is_local
            else f"{self.uri.partition('?')[0].rstrip('/')}/{path}"
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def read_bytes(self, path: str) -> bytes:
        """The whole file.

        Raises:
            StorageError: it does not exist or cannot be read.
        """
        with self._explained("read", path):
            if self._fs is None:
                with open(self.full_path(path), "rb") as file:
                    return file.read()
            with self._fs.open_input_file(self.full_path(path)) as stream:
                return bytes(stream.read())

    def read_if_exists(self, path: str) -> bytes | None:
        """The whole file, or None when there is no such file."""
        with self._explained("read", path):
            try:
                if self._fs is None:
                    with open(self.full_path(path), "rb") as file:
                        return file.read()
                with self._fs.open_input_file(self.full_path(path)) as stream:
                    return bytes(stream.read())
            except (FileNotFoundError, NotADirectoryError):
                return None

    def open_mmap(self, path: str) -> pa.NativeFile:
        """A random-access file: memory-mapped when local, otherwise read whole into memory.

        ``read_buffer()`` on it, and ``pyarrow.ipc.open_file``, copy nothing.

        Raises:
            StorageError: it does not exist or cannot be read.
        """
        import pyarrow as pa

        with self._explained("read", path):
            if self._fs is None:
                return pa.memory_map(self.full_path(path), "r")
            with self._fs.open_input_file(self.full_path(path)) as stream:
                return pa.BufferReader(stream.read_buffer())

    def exists(self, path: str) -> bool:
        """Whether a file (or directory) is there."""
        return self.info(path) is not None

    def size(self, path: str) -> int:
        """Bytes of a file.

        Raises:
            StorageError: there is no such file.
        """
        entry = self.info(path)
        if entry is None:
            raise StorageError(f"{self.describe(path)} does not exist")
        return entry.size

    def info(self, path: str) -> Entry | None:
        """Size and modification time of one file or directory, or None when nothing is there."""
        with self._explained("read", path):
            if self._fs is None:
                try:
                    status = os.stat(self.full_path(path))
                except (FileNotFoundError, NotADirectoryError):
                    return None
                is_directory = stat.S_ISDIR(status.st_mode)
                size = 0 if is_directory else status.st_size
                return Entry(path, size, is_directory, status.st_mtime)
            return self._entry(self._fs.get_file_info(self.full_path(path)), path)

    def list(self, directory: str = "", *, recursive: bool = False) -> list[Entry]:
        """What lies in a directory, sorted by path; nothing when the directory does not exist.

        Files that vanish while listing are left out.  Temporaries are listed: callers select by name.
        """
        with self._explained("list", directory):
            if self._fs is None:
                return sorted(self._walk_local(directory, recursive), key=lambda entry: entry.path)
            import pyarrow.fs as pafs

            base = self.full_path(directory)
            selector = pafs.FileSelector(base, recursive=recursive, allow_not_found=True)
            found = []
            for info in self._fs.get_file_info(selector):
                below = info.path[len(base) :].strip("/")
                entry = self._entry(info, f"{directory}/{below}" if directory else below)
                if entry is not None:
                    found.append(entry)
            return sorted(found, key=lambda entry: entry.path)

    def _walk_local(self, directory: str, recursive: bool) -> Iterator[Entry]:
        try:
            scan = os.scandir(self.full_path(directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        with scan:
            for item in scan:
                path = f"{directory}/{item.name}" if directory else item.name
                try:
                    is_directory = item.is_dir(follow_symlinks=False)
                    status = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                size = 0 if is_directory else status.st_size
                yield Entry(path, size, is_directory, status.st_mtime)
                if is_directory and recursive:
                    yield from self._walk_local(path, recursive)

    @staticmethod
    def _entry(info: pafs.FileInfo, path: str) -> Entry | None:
        import pyarrow.fs as pafs

        if info.type == pafs.FileType.NotFound:
            return None
        is_directory = info.type == pafs.FileType.Directory
        modified = (info.mtime_ns or 0) / 1e9
        return Entry(path, 0 if is_directory else int(info.size or 0), is_directory, modified)

    # -- changing files: one primitive per step --------------------------------------------------------------

    def create_file(self, path: str, write: Callable[[BinaryIO], Any]) -> None:
        """Creates or replaces one file in place and makes its bytes durable.  Not atomic: see atomic.py."""
        with self._explained("write", path):
            if self._fs is None:
                with open(self.full_path(path), "wb") as file:
                    write(file)
                    file.flush()
                    os.fsync(file.fileno())
                return
            with self._fs.open_output_stream(self.full_path(path)) as stream:
                write(stream)

    def rename(self, source: str, target: str) -> None:
        """Moves a file over whatever the target is; atomic on a local disk."""
        with self._explained("write", target):
            if self._fs is None:
                os.replace(self.full_path(source), self.full_path(target))
            else:
                self._fs.move(self.full_path(source), self.full_path(target))

    def link(self, source: str, target: str) -> bool:
        """Gives a local file a second name; False when the target already exists.

        Raises:
            StorageError: the filesystem has no hard links, or another fault (``__cause__`` tells which).
        """
        with self._explained("write", target):
            try:
                os.link(self.full_path(source), self.full_path(target))
            except FileExistsError:
                return False
            return True

    def sync_directory(self, directory: str) -> None:
        """Makes renames in a local directory durable; nothing to do elsewhere."""
        if self._fs is not None or os.name == "nt":
            return
        with self._explained("write", directory):
            descriptor = os.open(self.full_path(directory), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            except OSError as error:  # some network filesystems refuse fsync on a directory
                if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
                    raise
            finally:
                os.close(descriptor)

    def make_directory(self, directory: str) -> None:
        """Creates a directory and its parents; nothing to do on an object store."""
        if self.is_object_store:
            return
        with self._explained("write", directory):
            if self._fs is None:
                _make_durable_directory(self.full_path(directory))
            else:
                self._fs.create_dir(self.full_path(directory), recursive=True)

    def touch(self, path: str) -> None:
        """Sets a file's modification time to now, creating an empty file when there is none."""
        with self._explained("write", path):
            if self._fs is None:
                with open(self.full_path(path), "ab"):
                    os.utime(self.full_path(path))
            else:
                with self._fs.open_output_stream(self.full_path(path)):
                    pass

    def delete(self, path: str) -> bool:
        """Removes one file; False when it was not there."""
        with self._explained("delete", path):
            try:
                if self._fs is None:
                    os.unlink(self.full_path(path))
                else:
                    if self.is_object_store and not self.exists(path):
                        return False
                    self._fs.delete_file(self.full_path(path))
            except FileNotFoundError:
                return False
            return True

    def check_writable(self) -> None:
        """Writes, reads back and deletes a small file, so that a run can refuse before any work.

        Raises:
            StorageError: the storage cannot be written; one sentence says why.
        """
        from workers.storage.atomic import temporary_name, write_atomic

        probe = temporary_name("probe")
        try:
            write_atomic(self, probe, b"luca")
        except StorageError as error:
            if error.__cause__ is None:
                raise
            # Nobody asked for the probe: the place is what cannot be written.
            raise fault(error.__cause__, "write", self.describe()) from error.__cause__
        if self.read_bytes(probe) != b"luca":
            raise StorageError(f"{self.describe(probe)} reads back other bytes than were written")
        self.delete(probe)

    def _explained(self, verb: Verb, path: str) -> AbstractContextManager[None]:
        return explained(verb, lambda: self.describe(_final(path)), instead=self._instead)


def _final(path: str) -> str:
    """The name that a temporary was to be renamed to; any other path as it is."""
    found = _TEMPORARY.fullmatch(path)
    return path if found is None else f"{found[1] or ''}{found[2]}"


def _make_durable_directory(path: str) -> None:
    """``os.makedirs`` whose new entries survive a power cut."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_durable_directory(parent)
    with suppress(FileExistsError):
        os.mkdir(path)
    if os.name != "nt":
        descriptor = os.open(parent, os.O_RDONLY)
        try:
            with suppress(OSError):  # refused by some network filesystems
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


_STEPS = frozenset(("", ".", ".."))
_FORBIDDEN = re.compile(r"[\\\x00-\x1f]")


def check_relative(path: str) -> str:
    """The path itself when it stays below a root.

    Raises:
        StorageError: it is absolute, has ``.``, ``..`` or empty parts, a backslash or a control character.
    """
    if not path:
        return path
    parts = path.split("/")
    if not _STEPS.isdisjoint(parts) or _FORBIDDEN.search(path):
        raise StorageError(
            f"path {path!r} is not a plain relative path: no leading '/', '.', '..', empty parts, "
            "backslashes or control characters"
        )
    return path


def _unquote(text: str) -> str:
    from urllib.parse import unquote

    return unquote(text)
