"""The immutable bytes of a bank, named by their sha256: written once, checked on every read."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from workers.errors import CorruptionError, StorageError
from workers.storage.atomic import write_atomic
from workers.storage.bank_json import is_digest, sha256
from workers.storage.filesystem import Storage

_READERS = 16


@dataclass(frozen=True)
class ObjectStore:
    """Files below ``directory`` whose names are the sha256 of their bytes."""

    storage: Storage
    directory: str

    def path(self, digest: str) -> str:
        """Where an object lies, relative to the storage.

        Raises:
            CorruptionError: this is not a digest; nothing else ever becomes a path.
        """
        if not is_digest(digest):
            raise CorruptionError(f"{str(digest)[:80]!r} is not a sha256, so it names no object")
        return f"{self.directory}/{digest}"

    def read(self, digest: str) -> bytes:
        """An object's bytes.

        Raises:
            CorruptionError: it is missing, or its bytes are not the ones that were written.
        """
        path = self.path(digest)
        data = self.storage.read_if_exists(path)
        where = self.storage.describe(path)
        if data is None:
            raise CorruptionError(f"{where} is missing; {REMEDY}")
        if sha256(data) != digest:
            raise CorruptionError(f"{where} is damaged: its bytes do not match its name; {REMEDY}")
        return data

    def read_many(self, digests: Iterable[str]) -> list[bytes]:
        """Several objects; at once when each read is a request over a network.

        Raises:
            CorruptionError: one is missing or damaged.
        """
        if self.storage.is_local:
            return [self.read(digest) for digest in digests]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self.read, digests))

    def take(self, source: ObjectStore, digest: str) -> None:
        """Gets an object from another bank, checked: a second name for the same file on one local disk, else a copy.

        Either way it stays when the other bank drops it.
        """
        data = source.read(digest)
        if self.storage.is_local and source.storage.root == self.storage.root:
            self.storage.make_directory(self.directory)
            with suppress(StorageError):  # no hard links here: copy
                if self.storage.link(source.path(digest), self.path(digest)):
                    return
        self.write(data)

    def sync(self) -> None:
        """Makes names that were taken durable."""
        self.storage.make_directory(self.directory)  # a version without tasks brings no object
        self.storage.sync_directory(self.directory)

    def write(self, data: bytes) -> str:
        """Stores bytes and returns their digest.  Equal bytes already there are kept, damaged ones replaced."""
        digest = sha256(data)
        path = self.path(digest)
        if self.storage.read_if_exists(path) != data:
            write_atomic(self.storage, path, data)
        return digest


REMEDY = (
    "put it back from a fork, an export or a backup of this bank, or roll back to a version that does not "
    "use it: `luca bank verify` lists everything that is wrong"
)
