"""Cached features: one Arrow file a part, memory-mapped, checksummed, keyed by what determines its content.

A part is a run of samples of one class, domain and split, seen in one view; feature_file.py says what its file looks
like, feature_set.py makes one matrix of many.  A file is verified once per process, because hashing costs about as
much as reading; NaN and infinity are refused when a part is written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from pydantic import Field

from workers.errors import CorruptionError, DataError, StorageError
from workers.settings import Settings
from workers.storage.atomic import write_atomic
from workers.storage.feature_file import (
    FOLDER,
    ID,
    FeaturePart,
    PartKey,
    checked_features,
    checksum_fault,
    file_pieces,
    open_part,
)
from workers.storage.feature_set import FeatureSet
from workers.storage.filesystem import Storage, check_relative

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = [
    "CacheSize",
    "FeatureCache",
    "FeaturePart",
    "FeatureSet",
    "FeatureSettings",
    "PartKey",
    "cache_key",
    "checked_features",
    "part_digest",
    "ready_key",
]

_verified: set[tuple[str, int, int, int]] = set()


class FeatureSettings(Settings):
    """How features are computed and kept."""

    dtype: Literal["float32", "float16"] = Field(
        "float32", description="how features are cached; float16 halves the cache"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="what the backbone computes in"
    )
    batch_size: int = Field(64, ge=1, description="pictures in one forward pass")
    views: int = Field(
        0, ge=0, le=1000, description="augmented training views beside the test view"
    )
    part_size: int = Field(512, ge=1, description="most samples in one cached part")
    decode_threads: int | None = Field(
        None,
        ge=0,
        le=256,
        description="threads that decode ahead of the backbone; left out: none on a CPU, up to 8 on a GPU",
    )
    tolerate_unreadable: int = Field(
        0, ge=0, description="pictures that may be unreadable and are then left out, each named"
    )
    check_images: bool = Field(
        True,
        description="decode every new picture before anything is learned, so that a bad file leaves the bank as it "
        "was; false finds it when its part is extracted",
    )
    max_pixels: int = Field(
        89_478_485,
        ge=1,
        le=178_956_970,
        description="larger pictures are refused before they are decompressed",
    )


def cache_key(fingerprint: str, dtype: str) -> str:
    """The ``backbone`` of a :class:`PartKey`: features of one backbone, cached in one dtype."""
    return f"{fingerprint}-{dtype}"


def ready_key(width: int, dtype: str) -> str:
    """The ``backbone`` of a :class:`PartKey` for features that came ready-made."""
    return f"ready-features-{width}-{dtype}"


def part_digest(samples: pa.Table, *, view: int, seed: int) -> str:
    """32 hex digits from the samples' ids and content, in order; for augmented views from the seed as well."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(b"test" if view == 0 else f"seed {seed}".encode())
    for name in (ID, "content"):
        texts = samples.column(name).to_pylist()
        digest.update(np.fromiter(map(len, texts), dtype="<i8", count=len(texts)).tobytes())
        digest.update("".join(texts).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class CacheSize:
    """What lies in a cache."""

    parts: int
    bytes: int


class FeatureCache:
    """Feature parts in a storage.  Stateless and picklable; any number of processes may read and write at once.

    Two writers of one part write equal files to temporaries and rename them over each other, which harms nobody.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def has(self, key: PartKey) -> bool:
        """Whether the part's file is there (not whether it is intact)."""
        return self.storage.exists(key.path)

    def has_many(self, keys: Iterable[PartKey]) -> set[PartKey]:
        """Those of the keys whose files are there; one listing a backbone where looking one by one is slow."""
        keys = list(keys)
        if self.storage.is_local:
            return {key for key in keys if self.has(key)}
        there = {
            entry.path
            for backbone in {key.backbone for key in keys}
            for entry in self.storage.list(f"{FOLDER}/{backbone}", recursive=True)
        }
        return {key for key in keys if key.path in there}

    def write(self, key: PartKey, ids: Sequence[str] | pa.Array, features: NDArray[Any]) -> int:
        """Stores a part, whole or not at all.

        Args:
            key: the part.
            ids: [n] unique sample ids.
            features: [n, d] float32 or float16.

        Returns:
            The file's size in bytes.

        Raises:
            DataError: a feature is NaN or infinite (the first sample is named), or the shapes do not fit.
            StorageError: the storage cannot be written.
        """
        import pyarrow as pa

        check_relative(key.path)
        id_array = pa.array(ids, pa.string()) if not isinstance(ids, pa.Array) else ids
        matrix = checked_features(id_array, features)
        pieces = file_pieces(FeaturePart(key, id_array, matrix))

        def write(file: BinaryIO) -> None:
            for piece in pieces:
                file.write(piece)

        write_atomic(self.storage, key.path, write)
        return sum(len(piece) for piece in pieces)

    def read(self, key: PartKey) -> FeaturePart:
        """A part, memory-mapped where the storage is local.

        Raises:
            StorageError: it is not there or cannot be read.
            CorruptionError: it does not match its checksum or its key; the caller computes it again.
        """
        import pyarrow as pa

        with self.storage.open_mmap(key.path) as file:
            try:
                buffer = file.read_buffer()
            except (OSError, pa.ArrowException) as error:
                raise StorageError(
                    f"{self.storage.describe(key.path)} cannot be read: {error}"
                ) from error
        self._verify(key, buffer)
        try:
            part = open_part(buffer)
        except DataError as error:
            raise self._corrupt(key, str(error)) from error
        if part.key != key:
            raise self._corrupt(key, f"it holds {part.key}")
        return part

    def size(self) -> CacheSize:
        """Parts and bytes of every backbone."""
        entries = [
            entry
            for entry in self.storage.list(FOLDER, recursive=True)
            if entry.name.endswith(".arrow")
        ]
        return CacheSize(len(entries), sum(entry.size for entry in entries))

    def _verify(self, key: PartKey, buffer: pa.Buffer) -> None:
        identity = self._identity(key)
        if identity is not None and identity in _verified and identity[1] == buffer.size:
            return
        fault = checksum_fault(buffer)
        if fault is not None:
            raise self._corrupt(key, fault)
        if identity is not None:
            _verified.add(identity)

    def _identity(self, key: PartKey) -> tuple[str, int, int, int] | None:
        """What tells one version of a local file from another; None where bytes are fetched anew each time."""
        if not self.storage.is_local:
            return None
        path = self.storage.full_path(key.path)
        try:
            status = os.stat(path)
        except OSError:
            return None
        return path, status.st_size, status.st_mtime_ns, status.st_ino

    def _corrupt(self, key: PartKey, why: str) -> CorruptionError:
        return CorruptionError(
            f"feature file {self.storage.describe(key.path)} is damaged ({why}): "
            "delete it, or let the next run compute it again"
        )
