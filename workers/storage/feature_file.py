"""What a cached feature part is, and its file: Arrow IPC with a checksum over every byte.

The file is an ordinary uncompressed Arrow IPC file of one record batch (columns ``id`` string, ``feature``
fixed_size_list<float>), so any Arrow reader opens it and its features are used as they lie.  The schema's metadata
holds the part's key and a checksum: XXH3-128 over the whole file, the checksum's own digits counted as zeros.  The
metadata stands twice in an Arrow file, in its head and in its footer; both copies must agree.  The checksum is
looked at before Arrow parses anything.
"""

from __future__ import annotations

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

_PREFIX = b"xxh3:"
_UNSET = b"0" * 32
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
        import pyarrow as pa

        return pa.Table.from_batches([_batch(self)])

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


def checked_features(
    ids: pa.Array, features: NDArray[Any], *, hint: str | None = None
) -> NDArray[Any]:
    """The features as a C-contiguous matrix; ``hint`` ends the message about a value that is not finite.

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
        if hint is None:
            hint = "; if it is too large for float16, set features.dtype=float32"
            hint = hint if features.dtype == np.float16 else ""
        raise DataError(
            f"the feature of sample '{ids[bad].as_py()}' is NaN or infinite: check its file and the backbone{hint}"
        )
    return np.ascontiguousarray(features)


def _first_not_finite(features: NDArray[Any]) -> int | None:
    if features.dtype == np.float32:
        # NaN and infinity survive a sum of squares; a finite one proves all is well in one quick pass.
        flat = features.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.dot(flat, flat)):
                return None
    rows = ~np.isfinite(features).all(axis=1)
    return int(np.argmax(rows)) if rows.any() else None


def _batch(part: FeaturePart) -> pa.RecordBatch:
    import pyarrow as pa

    key, (n, width) = part.key, part.features.shape
    item = pa.float16() if part.features.dtype == np.float16 else pa.float32()
    values = pa.Array.from_buffers(item, n * width, [None, pa.py_buffer(part.features)])
    column = pa.FixedSizeListArray.from_arrays(values, width)
    schema = pa.schema(
        [pa.field(ID, pa.string()), pa.field(FEATURE, column.type)],
        metadata={
            b"luca.format": FORMAT.encode(),
            b"luca.backbone": key.backbone.encode(),
            b"luca.part": key.part.encode(),
            b"luca.view": str(key.view).encode(),
            b"luca.checksum": _PREFIX + _UNSET,
        },
    )
    return pa.RecordBatch.from_arrays([part.ids, column], schema=schema)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return pa.array([], column.type)
    return pa.concat_arrays(column.chunks)


def file_pieces(part: FeaturePart) -> list[bytes | pa.Buffer]:
    """The part's file as consecutive pieces; its arrays are not copied.

    Raises:
        StorageError: the key is so long that the metadata does not lie where a reader looks for it.
    """
    import pyarrow as pa
    import xxhash

    batch, sink = _batch(part), _Pieces()
    with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), batch.schema) as writer:
        writer.write_batch(batch)
    state = xxhash.xxh3_128()
    for piece in sink.pieces:
        state.update(piece)
    unset, digits = _PREFIX + _UNSET, _PREFIX + state.hexdigest().encode()
    # Arrow hands over its own messages as bytes and the table's arrays as buffers: only the former are changed.
    marked = [i for i, p in enumerate(sink.pieces) if isinstance(p, bytes) and unset in p]
    if len(marked) != 2 or any(len(sink.pieces[i]) > _WINDOW // 2 for i in marked):
        raise StorageError(f"the key {part.key} is too long for a feature file")
    for i in marked:
        sink.pieces[i] = sink.pieces[i].replace(unset, digits)
    return sink.pieces


class _Pieces:
    """A file object that keeps what is written to it, uncopied."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.closed = False
        self._size = 0

    def write(self, piece: bytes | pa.Buffer) -> int:
        self.pieces.append(piece)
        self._size += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True


def checksum_fault(buffer: pa.Buffer) -> str | None:
    """What is wrong with a file's bytes, or None when they match their checksum."""
    import xxhash

    view = memoryview(buffer)
    size = len(view)
    tail_start = max(0, size - _WINDOW)
    # The first copy stands before any id or feature, the last one behind them all.
    head = bytes(view[:_WINDOW]).find(_PREFIX)
    tail = bytes(view[tail_start:]).rfind(_PREFIX)
    first, last = head + len(_PREFIX), tail_start + tail + len(_PREFIX)
    end = len(_UNSET)
    if head < 0 or tail < 0 or last < first + end or last + end > size:
        return f"its checksum is missing, {size} bytes"
    digits = bytes(view[first : first + end])
    if digits != bytes(view[last : last + end]):
        return "the two copies of its checksum differ"
    state = xxhash.xxh3_128()
    for piece in (
        view[:first],
        _UNSET,
        view[first + end : last],
        _UNSET,
        view[last + end :],
    ):
        state.update(piece)
    if state.hexdigest().encode() != digits:
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
