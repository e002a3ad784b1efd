"""Which rows of which feature parts a piece of work reads: what travels to actors instead of features.

A task's samples lie in parts cut by class, so that the same parts serve any grouping of classes into tasks.
A trainer or evaluator is told parts and row numbers, maps the parts, and copies only the batches it reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workers.errors import CorruptionError, DataError, FeatureCorruptionError, StorageError
from workers.storage.features import FeatureCache, FeaturePart, FeatureSet, PartKey
from workers.wording import plural

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class FeatureRows:
    """Rows of feature parts, in order.

    Attributes:
        keys: the parts, view 0.
        sizes: samples of each part when none was skipped, int64 [parts].
        part: position in ``keys`` of each row, int64 [n].
        row: row inside that part, int64 [n].
        labels: class index in the stream of each row, int64 [n].
        ids: sample id of each row; needed where samples may have been skipped and for predictions.
        augmented: the same parts as augmented views, whose keys also hold the seed of the crops; empty
            when the run has no augmented views.
        tolerance: unreadable samples that the parts may lack.
    """

    keys: tuple[PartKey, ...]
    sizes: NDArray[np.int64]
    part: NDArray[np.int64]
    row: NDArray[np.int64]
    labels: NDArray[np.int64]
    ids: pa.Array
    augmented: tuple[PartKey, ...] = ()
    tolerance: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def identity(self) -> str:
        """A digest of which rows of which parts these are, view 0."""
        digest = hashlib.blake2b(digest_size=16)
        for key in self.keys:
            digest.update(f"{key.backbone}/{key.part};".encode())
        digest.update(np.ascontiguousarray(self.part).tobytes())
        digest.update(np.ascontiguousarray(self.row).tobytes())
        return digest.hexdigest()

    def keys_of_view(self, view: int) -> tuple[PartKey, ...]:
        """The same parts seen through augmented view ``view`` (0: the test transform)."""
        if view == 0:
            return self.keys
        return tuple(replace(key, view=view) for key in self.augmented)


@dataclass(frozen=True)
class OpenRows:
    """Features of ``FeatureRows`` that were really there, with their labels and ids."""

    features: FeatureSet
    labels: NDArray[np.int64]
    ids: pa.Array


def open_rows(
    cache: FeatureCache,
    rows: FeatureRows,
    *,
    view: int = 0,
    tables: Mapping[PartKey, pa.Table] | None = None,
) -> OpenRows:
    """Map the parts of ``rows`` and line features, labels and ids up.

    Args:
        cache: where parts lie.
        rows: what to read.
        view: 0 for the test transform, 1..K for augmented views.
        tables: parts at hand already, for instance from the object store; the rest is read.

    Raises:
        FeatureCorruptionError: a part is gone, does not match its checksum, or was cached by a run that tolerated
            more unreadable samples: it has to be extracted again.
        DataError: every sample was skipped as unreadable.
    """
    parts: list[FeaturePart] = []
    for key in rows.keys_of_view(view):
        table = tables.get(key) if tables else None
        parts.append(_read(cache, key) if table is None else FeaturePart.from_table(table))
    short = [i for i, part in enumerate(parts) if len(part) != rows.sizes[i]]
    part, row, labels, ids = rows.part, rows.row, rows.labels, rows.ids
    if short:
        lacking = sum(int(rows.sizes[i]) - len(parts[i]) for i in short)
        if lacking > rows.tolerance:
            raise FeatureCorruptionError(
                f"feature parts lack {plural(lacking, 'sample')}, unreadable when cached, and "
                f"features.tolerate_unreadable is {rows.tolerance}"
            )
        row, kept = _rows_by_id(parts, short, rows)
        part, row, labels = part[kept], row[kept], labels[kept]
        ids = ids.filter(_mask(kept))
    return OpenRows(FeatureSet(parts, part, row), labels, ids)


def _read(cache: FeatureCache, key: PartKey) -> FeaturePart:
    try:
        return cache.read(key)
    except CorruptionError as error:
        raise FeatureCorruptionError(str(error)) from error
    except StorageError as error:
        if cache.has(key):
            raise
        raise FeatureCorruptionError(str(error)) from error


def _mask(kept: NDArray[np.bool_]) -> pa.Array:
    import pyarrow as pa

    return pa.array(kept)


def _rows_by_id(
    parts: list[FeaturePart], short: list[int], rows: FeatureRows
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Row numbers where unreadable samples were skipped: found by id, and which rows remain."""
    import pyarrow.compute as pc

    row = rows.row.copy()
    kept = np.ones(len(row), dtype=bool)
    for position in short:
        here = np.flatnonzero(rows.part == position)
        found = pc.index_in(rows.ids.take(here), value_set=parts[position].ids)
        numbers = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        row[here] = numbers
        kept[here] = numbers >= 0
    if len(kept) and not kept.any():
        raise DataError(
            "every sample of a task was skipped as unreadable: lower features.tolerate_unreadable or "
            "mend the files"
        )
    return row, kept
