"""Named arrays as safetensors bytes: equal arrays give equal bytes, and hostile bytes give one clear error.

The layout is safetensors' own (eight bytes of header length, a JSON header, the data without gaps), written in one
canonical way: header sorted by name, compact and padded with spaces to a multiple of eight; data sorted by item size
(widest first, so that every array is aligned), then by name; no metadata.  The safetensors package reads it; its own writer is not used because its bytes may change between releases, and a
digest must not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.errors import BankError, CorruptionError

Arrays = dict[str, npt.NDArray[Any]]
"""Arrays by name: what one object of a bank holds."""

_TO_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_FROM_NUMPY = {np.dtype(code): name for name, code in _TO_NUMPY.items()}
_HEADER_LIMIT = 100_000_000  # safetensors' own
_NAME_LIMIT = 500
_RANK_LIMIT = 8


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as its header declares it; ``start`` and ``end`` are offsets into the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of data."""
        return self.end - self.start


def encode(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The canonical bytes of some arrays.

    Raises:
        BankError: a value is not an array, or has a type that safetensors does not know.
    """
    infos: list[TensorInfo] = []
    chunks: list[bytes] = []
    offset = 0
    for name in sorted(arrays, key=lambda name: (-getattr(arrays[name], "itemsize", 0), name)):
        array = arrays[name]
        if not isinstance(array, np.ndarray):
            raise BankError(f"tensor '{name}' is a {type(array).__name__}: give a numpy array")
        little = array.dtype.newbyteorder("<")
        if little not in _FROM_NUMPY:
            raise BankError(
                f"tensor '{name}' has type {array.dtype}: give one of {', '.join(sorted(_TO_NUMPY))}"
            )
        if not 0 < len(name) <= _NAME_LIMIT or name == "__metadata__" or array.ndim > _RANK_LIMIT:
            raise BankError(
                f"tensor {name!r} needs a name of 1 to {_NAME_LIMIT} characters and at most {_RANK_LIMIT} axes"
            )
        chunk = np.ascontiguousarray(array, dtype=little).tobytes()
        end = offset + len(chunk)
        infos.append(TensorInfo(name, _FROM_NUMPY[little], array.shape, offset, end))
        chunks.append(chunk)
        offset = end
    return b"".join([write_header(infos), *chunks])


def decode(data: bytes | memoryview, where: str) -> Arrays:
    """The arrays of safetensors bytes, as read-only views that copy nothing.

    Raises:
        CorruptionError: the bytes are not valid safetensors; ``where`` names them.
    """
    return {info.name: view(data, info) for info in read_header(data, where)}


def read_header(data: bytes | memoryview, where: str) -> tuple[TensorInfo, ...]:
    """What tensors safetensors bytes hold, sorted by name; the whole layout is checked.

    Raises:
        CorruptionError: the bytes are not valid safetensors.
    """
    header, length = _parse_header(data, where)
    header.pop("__metadata__", None)
    found = [_tensor_info(name, fields, where) for name, fields in header.items()]
    position = 0
    for info in sorted(found, key=lambda info: (info.start, info.end)):
        if info.start != position:
            raise CorruptionError(f"{where}: tensor '{info.name}' overlaps another or leaves a gap")
        position = info.end
    if position != len(data) - 8 - length:
        raise CorruptionError(f"{where} holds {len(data)} bytes, {8 + length + position} expected")
    return tuple(sorted(found, key=lambda info: info.name))


def read_metadata(data: bytes | memoryview, where: str) -> dict[str, str]:
    """The texts in the header's ``__metadata__``.

    Raises:
        CorruptionError: the bytes are not valid safetensors.
    """
    metadata = _parse_header(data, where)[0].get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CorruptionError(f"{where}: its metadata is not a table of texts")
    return metadata


def view(data: bytes | memoryview, info: TensorInfo) -> npt.NDArray[Any]:
    """One tensor of bytes whose header has been read; a read-only view."""
    start = 8 + int.from_bytes(data[:8], "little")
    raw = memoryview(data)[start + info.start : start + info.end]
    return np.frombuffer(raw, dtype=np.dtype(_TO_NUMPY[info.dtype])).reshape(info.shape)


def write_header(infos: Iterable[TensorInfo], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes that stand before the data."""
    header: dict[str, Any] = {
        info.name: {
            "data_offsets": [info.start, info.end],
            "dtype": info.dtype,
            "shape": list(info.shape),
        }
        for info in infos
    }
    if metadata is not None:
        header["__metadata__"] = dict(metadata)
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def item_size(dtype: str) -> int:
    """Bytes of one number of a safetensors type."""
    return np.dtype(_TO_NUMPY[dtype]).itemsize


def _parse_header(data: bytes | memoryview, where: str) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_HEADER_LIMIT, len(data) - 8):
        raise CorruptionError(
            f"{where} is not a safetensors file: it is shorter than its header says"
        )
    try:
        header = json.loads(bytes(data[8 : 8 + length]), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(
            f"{where} is not a safetensors file: its header is not valid JSON"
        ) from error
    if not isinstance(header, dict):
        raise CorruptionError(f"{where} is not a safetensors file: its header is not an object")
    return header, length


def _tensor_info(name: str, fields: object, where: str) -> TensorInfo:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise CorruptionError(f"{where}: tensor {name!r} needs dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _TO_NUMPY:
        raise CorruptionError(f"{where}: tensor {name!r} has the unknown type {str(dtype)[:40]!r}")
    if not _are_sizes(shape) or len(shape) > _RANK_LIMIT:
        raise CorruptionError(f"{where}: tensor {name!r} has an impossible shape")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CorruptionError(f"{where}: tensor {name!r} has impossible offsets")
    size = math.prod(shape) * np.dtype(_TO_NUMPY[dtype]).itemsize
    if offsets[1] - offsets[0] != size:
        raise CorruptionError(
            f"{where}: tensor {name!r} has {offsets[1] - offsets[0]} bytes, its shape needs {size}"
        )
    return TensorInfo(name, dtype, tuple(shape), offsets[0], offsets[1])


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**48 for value in values
    )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result
