"""Files that appear whole or not at all.

Local disks: write to a temporary in the same directory, fsync it, rename, fsync the directory.  Object stores: a
finished upload appears at once, so it is a plain put.  Other filesystems: temporary and move.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
from collections.abc import Callable
from typing import BinaryIO

from workers.errors import StorageError
from workers.storage.filesystem import TEMPORARY_SUFFIX, Storage

Content = bytes | bytearray | memoryview | Callable[[BinaryIO], object]
"""Bytes, or a function that writes them to an open binary file."""


_NO_LINKS = frozenset(
    {
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
        errno.EPERM,
        errno.EACCES,
        errno.EMLINK,
        errno.EXDEV,
    }
)


def temporary_name(path: str) -> str:
    """A fresh name beside ``path`` that no reader looks at: hidden, random, ending in ``.tmp``."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}.{name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"


def is_temporary(name: str) -> bool:
    """Whether a file name is one of :func:`temporary_name`'s."""
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def write_atomic(storage: Storage, path: str, content: Content) -> None:
    """Creates or replaces a file; a reader, or a crash at any moment, sees the old file or the new one.

    Raises:
        StorageError: it cannot be written (full disk, permissions, ...); the old file is untouched.
    """
    write = _writer(content)
    if storage.is_object_store:
        _put(storage, path, write)
        return
    directory = path.rpartition("/")[0]
    temporary = _write_temporary(storage, path, write)
    try:
        storage.rename(temporary, path)
    except BaseException:
        _discard(storage, temporary)
        raise
    storage.sync_directory(directory)


def write_file(path: str | os.PathLike[str], content: Content) -> None:
    """:func:`write_atomic` for a local file that the user named, outside of any storage.

    Raises:
        StorageError: it cannot be written; the old file is untouched.
    """
    folder, name = os.path.split(os.path.abspath(path))
    write_atomic(Storage.of_folder(folder), name, content)


def write_exclusive(storage: Storage, path: str, content: Content) -> bool:
    """Creates a file only if there is none; False, and nothing changed, when there is one already.

    On a local disk exactly one of several racing writers gets True.  Filesystems without an exclusive create
    (object stores through pyarrow, disks without hard links) look first and then write: there, callers that
    race need a lock as well.

    Raises:
        StorageError: it cannot be written.
    """
    if storage.exists(path):
        return False
    write = _writer(content)
    if storage.is_object_store:
        _put(storage, path, write)
        return True
    temporary = _write_temporary(storage, path, write)
    try:
        created = _claim(storage, temporary, path)
    except BaseException:
        _discard(storage, temporary)
        raise
    if created:
        storage.sync_directory(path.rpartition("/")[0])
    return created


def _claim(storage: Storage, temporary: str, path: str) -> bool:
    if storage.is_local:
        try:
            created = storage.link(temporary, path)
        except StorageError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _NO_LINKS:
                raise
        else:
            storage.delete(temporary)
            return created
    if storage.exists(path):
        storage.delete(temporary)
        return False
    storage.rename(temporary, path)
    return True


def _write_temporary(storage: Storage, path: str, write: Callable[[BinaryIO], object]) -> str:
    temporary = temporary_name(path)
    storage.make_directory(path.rpartition("/")[0])
    try:
        storage.create_file(temporary, write)
    except BaseException:
        _discard(storage, temporary)
        raise
    return temporary


def _put(storage: Storage, path: str, write: Callable[[BinaryIO], object]) -> None:
    """Uploads only finished bytes: an upload that is closed after a fault would appear half-written."""
    buffer = io.BytesIO()
    write(buffer)
    storage.create_file(path, lambda stream: stream.write(buffer.getbuffer()))


def _discard(storage: Storage, temporary: str) -> None:
    """Removes a temporary after a fault; when that fails too, the first error matters and gc removes it later."""
    with contextlib.suppress(StorageError):
        storage.delete(temporary)


def _writer(content: Content) -> Callable[[BinaryIO], object]:
    if callable(content):
        return content
    data = content
    return lambda file: file.write(data)
