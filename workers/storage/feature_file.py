"""What a cached feature part is, and its file: Arrow IPC with a checksum over every byte.

The file is an ordinary uncompressed Arrow IPC file of one record batch (columns ``id`` string, ``feature``
fixed_size_list<float>), so any Arrow reader opens it and its features are used as they lie.  The schema's metadata
holds the part's key and a checksum: XXH3-128 over the whole file, the checksum's own digits counted as zeros.  The
metadata stands twice in an Arrow file, in its head and in its footer; both copies must agree.  The checksum is
looked at before Arrow parses anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workers.errors import DataError, StorageError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

FOLDER = "features"
FORMAT = "luca-features-1"
ID = "id"
FEATURE = "feature"

_ALGORITHM = b"xxh3:"
_UNSET = b"0" * 32
_CHECKSUM = re.compile(rb"xxh3:([0-9a-f]{32})")
_WINDOW = 4096
"""Head and tail of a file in which the two copies of the schema metadata lie."""


@dataclass(frozen=True)
class PartKey:
    """What determines a part's content.

    Attributes:
        backbone: fingerprint of the backbone and the cache's dtype (:func:`cache_key`), or of ready features.
        part: :func:`part_digest` of its samples.
        view: 0 is the test transform, 1..K are augmented views.
    """

    backbone: str
    part: str
    view: int = 0

    @property
    def path(self) -> str:
        """``features/<backbone>/<part[:2]>/<part>.v000.arrow`` below the storage root."""
        return f"{FOLDER}/{self.backbone}/{self.part[:2]}/{self.part}.v{self.view:03d}.arrow"


@dataclass(frozen=True)
class FeaturePart:
    """Features of one part.

    Attributes:
        key: which part.
        ids: pa.Array of string, [n].
        features: [n, d] float32 or float16, C-contiguous and read-only, usually a view of a mapped file.
    """

    key: PartKey
    ids: pa.Array
    features: NDArray[Any]

    def __len__(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        """d, the length of a feature."""
        return int(self.features.shape[1])

    def to_table(self) -> pa.Table:
        """Columns ``id`` and ``feature`` sharing this part's memory, with the key in the schema's metadata."""
        return _table(self.key, self.ids, self.features, _UNSET)

    @classmethod
    def from_table(cls, table: pa.Table) -> FeaturePart:
        """The inverse of :meth:`to_table`, sharing the table's memory when it is one chunk.

        Raises:
            DataError: the table is not one of :meth:`to_table`'s.
        """
        import pyarrow as pa

        metadata = table.schema.metadata or {}
        try:
            key = PartKey(
                metadata[b"luca.backbone"].decode(),
                metadata[b"luca.part"].decode(),
                int(metadata[b"luca.view"]),
            )
            ids = _one_chunk(table.column(ID))
            column = _one_chunk(table.column(FEATURE))
            if not pa.types.is_fixed_size_list(column.type):
                raise ValueError(f"column '{FEATURE}' is {column.type}")
            width = column.type.list_size
            features = column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), width)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise DataError(
                f"a table is no feature part ({error}): it needs columns '{ID}' string and "
                f"'{FEATURE}' fixed_size_list of floats, and a part's key in its metadata"
            ) from error
        features.flags.writeable = False
        return cls(key, ids, features)


def checked_features(ids: pa.Array, features: NDArray[Any]) -> NDArray[Any]:
    """The features as a C-contiguous matrix.

    Raises:
        DataError: not [n, d] floats for n ids, or a value is NaN or infinite (names the first sample).
    """
    if features.ndim != 2 or features.dtype not in (np.float32, np.float16):
        raise DataError(
            f"features are {features.dtype} {list(features.shape)}: give float32 or float16 [n, d]"
        )
    if len(ids) != len(features):
        raise DataError(f"there are {len(features)} features for {len(ids)} sample ids")
    bad = _first_not_finite(features)
    if bad is not None:
        hint = "; set features.dtype=float32" if features.dtype == np.float16 else ""
        raise DataError(
            f"the feature of sample '{ids[bad].as_py()}' is NaN or infinite: check its file and the backbone{hint}"
        )
    return np.ascontiguousarray(features)


def _first_not_finite(features: NDArray[Any]) -> int | None:
    if features.dtype == np.float32:
        # NaN and infinity survive a sum; a finite sum proves all is well in one quick pass.
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(features.sum(dtype=np.float32)):
                return None
    rows = ~np.isfinite(features).all(axis=1)
    return int(np.argmax(rows)) if rows.any() else None


def _table(key: PartKey, ids: pa.Array, features: NDArray[Any], checksum: bytes) -> pa.Table:
    import pyarrow as pa

    n, width = features.shape
    item = pa.float16() if features.dtype == np.float16 else pa.float32()
    values = pa.Array.from_buffers(item, n * width, [None, pa.py_buffer(features)])
    column = pa.FixedSizeListArray.from_arrays(values, width)
    schema = pa.schema(
        [pa.field(ID, pa.string()), pa.field(FEATURE, column.type)],
        metadata={
            b"luca.format": FORMAT.encode(),
            b"luca.backbone": key.backbone.encode(),
            b"luca.part": key.part.encode(),
            b"luca.view": str(key.view).encode(),
            b"luca.checksum": _ALGORITHM + checksum,
        },
    )
    return pa.Table.from_arrays([ids, column], schema=schema)


def serialised(part: FeaturePart) -> pa.Buffer:
    """The part's file with a checksum of zeros."""
    import pyarrow as pa

    table = part.to_table()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(_one_batch(table))
    return sink.getvalue()


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [_one_chunk(column) for column in table.columns], schema=table.schema
    )


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    return pa.concat_arrays(column.chunks)


def _slots(view: memoryview) -> list[tuple[int, bytes]]:
    """Where the checksum's digits stand, and what they are: once in the head's schema, once in the footer's."""
    size = len(view)
    found = [(m.start(1), m.group(1)) for m in _CHECKSUM.finditer(view[:_WINDOW])]
    start = max(size - _WINDOW, 0)
    for match in _CHECKSUM.finditer(view[start:]):
        place = start + match.start(1)
        if all(place != other for other, _ in found):
            found.append((place, match.group(1)))
    return found


def _checksum(view: memoryview, places: Sequence[int]) -> bytes:
    """XXH3-128 of the bytes with the digits at ``places`` taken as zeros; 32 hex digits."""
    import xxhash

    state = xxhash.xxh3_128()
    position = 0
    for place in places:
        state.update(view[position:place])
        state.update(_UNSET)
        position = place + len(_UNSET)
    state.update(view[position:])
    digits: str = state.hexdigest()
    return digits.encode()


def with_checksum(buffer: pa.Buffer) -> list[memoryview | bytes]:
    """The file in pieces, the checksum's digits filled in."""
    view = memoryview(buffer)
    places = [place for place, _ in _slots(view)]
    if len(places) != 2:
        raise StorageError(
            "a feature part's metadata does not fit its format: its key is too long or strange"
        )
    digits = _checksum(view, places)
    first, second = places
    end = len(digits)
    return [
        view[:first],
        digits,
        view[first + end : second],
        digits,
        view[second + end :],
    ]


def checksum_fault(buffer: pa.Buffer) -> str | None:
    """What is wrong with a file's bytes, or None when they match their checksum."""
    view = memoryview(buffer)
    slots = _slots(view)
    if len(slots) != 2 or slots[0][1] != slots[1][1]:
        return f"its checksum is missing or damaged, {len(view)} bytes"
    if _checksum(view, [place for place, _ in slots]) != slots[0][1]:
        return "its bytes do not match its checksum"
    return None


def open_part(buffer: pa.Buffer) -> FeaturePart:
    """The part in a verified file's bytes, sharing their memory.

    Raises:
        DataError: the bytes are not a feature file of this format.
    """
    import pyarrow as pa

    try:
        with pa.ipc.open_file(buffer) as reader:
            table = reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"not an Arrow file ({error})") from error
    found = (table.schema.metadata or {}).get(b"luca.format", b"none").decode(errors="replace")
    if found != FORMAT:
        raise DataError(f"its format is '{found}' and not '{FORMAT}'")
    return FeaturePart.from_table(table)
