"""Files and folders on any pyarrow file system: local paths, ``file://``, ``s3://``, ``gs://``, ...

Local folders are walked with the operating system, which sees symbolic links; everything else goes through pyarrow.
A sample's ``location`` never carries the credentials or options that a URI may hold: readers keep the URI itself.
"""

from __future__ import annotations

import os
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Any

from workers.errors import DataError
from workers.storage.faults import IN_DATA, remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_THREADS = 16
_CHUNK = 64


@dataclass(frozen=True)
class FileEntry:
    """A file below a folder: its path relative to the folder ("/"-separated), where it is, size and change time."""

    relative: str
    location: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Tree:
    """Everything below a folder, sorted by relative path.

    Attributes:
        files, folders: those whose names, and the names of the folders they lie in, do not start with a dot.
        hidden: relative paths of the other files; what macOS leaves beside each file (``._x``) is not among them.
    """

    files: tuple[FileEntry, ...]
    folders: tuple[str, ...]
    hidden: tuple[str, ...] = ()


def is_remote(path: str) -> bool:
    """Whether a path is a URI of something else than the local file system."""
    return "://" in path and not path.startswith("file://")


def local_path(path: str) -> str:
    """The absolute local path that a path or ``file://`` URI names."""
    if path.startswith("file://"):
        from urllib.parse import unquote

        path = unquote(path.removeprefix("file://"))
    return os.path.abspath(os.path.expanduser(path))


@lru_cache(maxsize=32)
def _open_uri(uri: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow import fs

    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"cannot open {public_uri(uri)!r}: {reason}") from error
    return filesystem, path.rstrip("/")


def public_uri(uri: str) -> str:
    """A URI without the credentials and options it may carry."""
    if not is_remote(uri):
        return uri
    scheme, rest = uri.split("://", 1)
    host, slash, path = rest.split("?", 1)[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def filesystem_of(root: str, location: str) -> tuple[Any, str]:
    """The pyarrow file system that holds ``location``, opened as the URI ``root`` says, and the path on it."""
    from pyarrow import fs

    if not is_remote(location):
        return fs.LocalFileSystem(), local_path(location)
    return _open_uri(root)[0], location.split("://", 1)[1]


def locate(path: str) -> str:
    """The location of a path or URI as the sample table spells it: absolute path, or URI without credentials."""
    if not is_remote(path):
        return local_path(path)
    return f"{path.split('://', 1)[0]}://{_open_uri(path)[1]}"


def absolute(path: str) -> str:
    """A path as other processes need it: absolute when local, a URI as it is."""
    return path if is_remote(path) else local_path(path)


def kind_of(path: str) -> str:
    """Whether a path is a "file", a "folder" or "missing"."""
    if not is_remote(path):
        target = local_path(path)
        return (
            "folder" if os.path.isdir(target) else "file" if os.path.isfile(target) else "missing"
        )
    from pyarrow import fs

    filesystem, inner = _open_uri(path)
    try:
        found = filesystem.get_file_info(inner).type
    except OSError as error:
        raise DataError(f"cannot reach {public_uri(path)!r}: {error}") from error
    return {fs.FileType.Directory: "folder", fs.FileType.File: "file"}.get(found, "missing")


def missing_message(path: str, *, what: str) -> str:
    """One sentence about a path that is not there, with the nearest parent that is."""
    if is_remote(path):
        return f"no {what} at {public_uri(path)!r}: check the address and that you may read it"
    target = local_path(path)
    parent = os.path.dirname(target)
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    names = sorted(name for name in os.listdir(parent) if not name.startswith("."))
    holds = ", ".join(repr(name) for name in names[:6]) + (", ..." if len(names) > 6 else "")
    return f"no {what} {target!r}: the nearest folder that exists is {parent!r}, which holds {holds or 'nothing'}"


def stat_file(root: str, location: str, relative: str) -> FileEntry:
    """The entry of one file.

    Raises:
        DataError: there is no such file.
    """
    if not is_remote(location):
        try:
            status = os.stat(location)
        except (OSError, ValueError) as error:
            raise _unreadable(location, error) from error
        _check_regular(location, status.st_mode)
        return FileEntry(relative, location, status.st_size, status.st_mtime_ns)
    filesystem, inner = filesystem_of(root, location)
    info = filesystem.get_file_info(inner)
    if not info.is_file:
        raise DataError(missing_message(location, what="file"))
    return FileEntry(relative, location, info.size, info.mtime_ns or 0)


def _check_regular(location: str, mode: int) -> None:
    """Refuse what is no file: reading a pipe would wait for ever, and a device may have no end."""
    if S_ISDIR(mode):
        raise DataError(f"{location!r} is a folder where a file is expected")
    if not S_ISREG(mode):
        raise DataError(f"{location!r} is a pipe, socket or device, not a file: remove it")


def walk(path: str) -> Tree:
    """All files and folders below a folder.

    Raises:
        DataError: there is no such folder, a link leads back to a folder above it, or a name is not valid text.
    """
    kind = kind_of(path)
    if kind == "missing":
        raise DataError(missing_message(path, what="folder"))
    if kind == "file":
        raise DataError(f"{public_uri(path)!r} is a file where a folder is expected")
    files, folders, hidden = (
        _walk_remote(path) if is_remote(path) else _walk_local(local_path(path))
    )
    return Tree(
        tuple(sorted(files, key=lambda file: file.relative)),
        tuple(sorted(folders)),
        tuple(sorted(name for name in hidden if not name.rpartition("/")[2].startswith("._"))),
    )


def _walk_local(root: str) -> tuple[list[FileEntry], list[str], list[str]]:
    files: list[FileEntry] = []
    folders: list[str] = []
    hidden: list[str] = []

    def visit(folder: str, relative: str, above: dict[tuple[int, int], str]) -> None:
        status = os.stat(folder)
        inode = (status.st_dev, status.st_ino)
        if inode in above:
            raise DataError(
                f"symbolic link loop: {folder!r} leads back to {above[inode]!r}; remove the link"
            )
        inside = {**above, inode: folder}
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    hidden.extend(_files_below(entry, root))
                    continue
                name = relative + _text(entry.name, entry.path)
                try:
                    if entry.is_dir():
                        folders.append(name)
                        visit(entry.path, name + "/", inside)
                    else:
                        stat = entry.stat()
                        _check_regular(entry.path, stat.st_mode)
                        files.append(FileEntry(name, entry.path, stat.st_size, stat.st_mtime_ns))
                except OSError as error:
                    raise _unreadable(entry.path, error) from error

    try:
        visit(root, "", {})
    except OSError as error:
        raise _unreadable(root, error) from error
    return files, folders, hidden


def _files_below(hidden: os.DirEntry[str], root: str) -> list[str]:
    """Names of the files that a hidden entry is or holds; its links are not followed and its errors are nobody's."""
    found = [hidden.path]
    if hidden.is_dir(follow_symlinks=False):
        found = [
            os.path.join(top, name) for top, _, names in os.walk(hidden.path) for name in names
        ]
    names = (os.path.relpath(path, root).replace(os.sep, "/") for path in found)
    return [name.encode("utf-8", "replace").decode() for name in names]


def _walk_remote(path: str) -> tuple[list[FileEntry], list[str], list[str]]:
    from pyarrow import fs

    filesystem, root = _open_uri(path)
    scheme = path.split("://", 1)[0]
    files: list[FileEntry] = []
    folders: set[str] = set()
    hidden: list[str] = []
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True)):
        relative = _text(info.path[len(root) :].strip("/"), info.path)
        parts = relative.split("/")
        if any(part.startswith(".") for part in parts):
            hidden += [relative] if info.is_file else []
            continue
        if info.is_file:
            location = f"{scheme}://{info.path}"
            files.append(FileEntry(relative, location, info.size, info.mtime_ns or 0))
            parts = parts[:-1]
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return files, list(folders), hidden


def _text(name: str, path: str) -> str:
    """A name in Unicode's composed form, so that it is the same on file systems that decompose it."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"the name {path!r} is not valid UTF-8: rename it") from error
    return unicodedata.normalize("NFC", name)


def read_bytes(root: str, location: str) -> bytes:
    """A whole file.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        if not is_remote(location):
            with open(location, "rb") as file:
                return file.read()
        filesystem, inner = filesystem_of(root, location)
        with filesystem.open_input_stream(inner) as stream:
            return bytes(stream.read())
    except (OSError, ValueError) as error:
        raise _unreadable(location, error) from error


def _unreadable(location: str, error: OSError | ValueError) -> DataError:
    """Why a file cannot be had, and what would help; a name with a null byte is a ValueError."""
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return DataError(f"cannot read {location!r}: {reason}{remedy(error, 'read', IN_DATA)}")


def read_many(root: str, locations: Sequence[str]) -> list[bytes]:
    """Whole files in order; remote ones are fetched by several threads."""
    if not any(is_remote(location) for location in locations):
        return [read_bytes(root, location) for location in locations]
    return _in_threads(lambda location: read_bytes(root, location), locations)


def content_digest(data: Any) -> str:
    """What identifies a sample's content: hex of the 16-byte blake2b of its bytes."""
    return blake2b(data, digest_size=16).hexdigest()


def check_content(samples: Any, position: int, data: Any) -> None:
    """Raise a DataError unless ``data`` are the bytes that were listed for row ``position`` of a sample table."""
    if content_digest(data) != samples["content"][position].as_py():
        location, row = samples["location"][position].as_py(), samples["row"][position].as_py()
        at = f" row {row}" if row >= 0 else ""
        raise DataError(f"{location!r}{at} has changed since it was listed; start the run again")


def file_digests(root: str, locations: Sequence[str]) -> list[str]:
    """The content digest of each file, read by several threads."""
    return _in_threads(lambda location: content_digest(read_bytes(root, location)), locations)


def _in_threads(function: Callable[[str], Any], items: Sequence[str]) -> list[Any]:
    chunks = [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]
    with ThreadPoolExecutor(_THREADS) as pool:
        done = pool.map(lambda chunk: [function(item) for item in chunk], chunks)
        return [result for chunk in done for result in chunk]
