"""Parquet files that hold a checksum over every byte, and are Parquet for everybody else.

Parquet notices some damage and reads the rest as other numbers.  The checksum, XXH3-128 over the whole file with its
own digits counted as zeros, stands in the metadata at the file's end.  A file without one, of an older program or with
damage right there, is read as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_MARK = b"luca-seal-xxh3-128:"
_UNSET = b"0" * 32


def sealed(table: pa.Table) -> bytes:
    """A table, with the metadata of its schema, as the bytes of a sealed Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {**(table.schema.metadata or {}), b"luca.seal": _MARK + _UNSET}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
    data = bytearray(sink.getvalue())
    at = data.rindex(_MARK) + len(_MARK)  # metadata stand behind all that samples could say
    data[at : at + len(_UNSET)] = _checksum(memoryview(data), at)
    return bytes(data)


def is_sealed(buffer: pa.Buffer) -> bool:
    """Whether a file's bytes hold a checksum at all."""
    return _rfind(memoryview(buffer), _MARK) is not None


def seal_fault(buffer: pa.Buffer) -> str | None:
    """What is wrong with a file's bytes, or None when they match their checksum or have none."""
    view = memoryview(buffer)
    at = _rfind(view, _MARK)
    if at is None or at + len(_MARK) + len(_UNSET) > len(view):
        return None
    at += len(_MARK)
    if bytes(view[at : at + len(_UNSET)]) != _checksum(view, at):
        return "its bytes do not match its checksum"
    return None


def _checksum(view: memoryview, at: int) -> bytes:
    import xxhash

    state = xxhash.xxh3_128()
    for piece in (view[:at], _UNSET, view[at + len(_UNSET) :]):
        state.update(piece)
    return state.hexdigest().encode()


def _rfind(view: memoryview, mark: bytes, block: int = 2**20) -> int | None:
    """Where ``mark`` stands last, without a copy of the whole."""
    end = len(view)
    while end > 0:
        start = max(0, end - block)
        found = bytes(view[start : end + len(mark) - 1]).rfind(mark)
        if found >= 0:
            return start + found
        end = start
    return None
