"""A compact, exact form of modules with many zeros: one bit an entry, and the values that are not zero.

A tensor called ``w`` becomes three arrays, ``w#mask`` (uint8, packed bits in C order), ``w#values`` (its dtype,
the marked entries in that order) and ``w#shape`` (int64); a tensor for which that is not smaller stays as it is.
"Zero" means all bits zero: -0.0 and every NaN pattern are stored as values, so decoding gives back each bit.
NumPy alone, because storage uses it and imports nothing of modelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.errors import CorruptionError, DataError

Array = NDArray[Any]

_MARK = "#"
_MASK, _VALUES, _SHAPE = "#mask", "#values", "#shape"


def encode(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays in their smaller form, each dense or as bitmask, values and shape.

    Raises:
        DataError: a name contains ``#``, or an array is not of a plain numeric dtype.
    """
    encoded: dict[str, Array] = {}
    for name, array in arrays.items():
        if _MARK in name:
            raise DataError(f"array name {name!r} contains {_MARK!r}, which marks sparse parts")
        if array.dtype.kind not in "fiub":
            raise DataError(
                f"array {name!r} has dtype {array.dtype}; only plain numbers can be stored"
            )
        encoded.update(_encode_one(name, np.ascontiguousarray(array).reshape(array.shape)))
    return encoded


def decode(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """What ``encode`` was given, bit for bit.

    Raises:
        CorruptionError: parts of a sparse array are missing or do not fit together.
    """
    decoded: dict[str, Array] = {}
    for name, array in arrays.items():
        base, mark, part = name.partition(_MARK)
        if not mark:
            decoded[name] = array
        elif part == _MASK[1:]:
            decoded[base] = _decode_one(base, arrays)
        elif f"{base}{_MASK}" not in arrays or part not in (_VALUES[1:], _SHAPE[1:]):
            raise CorruptionError(f"array {name!r} is a part of a sparse array that is not whole")
    return decoded


def _encode_one(name: str, array: Array) -> dict[str, Array]:
    raw = array.reshape(-1).view(np.uint8).reshape(array.size, array.dtype.itemsize)
    kept = raw.any(axis=1)
    mask = np.packbits(kept)
    values = array.reshape(-1)[kept]
    shape = np.asarray(array.shape, dtype=np.int64)
    if mask.nbytes + values.nbytes + shape.nbytes >= array.nbytes:
        return {name: array}
    return {f"{name}{_MASK}": mask, f"{name}{_VALUES}": values, f"{name}{_SHAPE}": shape}


def _decode_one(name: str, arrays: Mapping[str, Array]) -> Array:
    mask = arrays[f"{name}{_MASK}"]
    values, shape = arrays.get(f"{name}{_VALUES}"), arrays.get(f"{name}{_SHAPE}")
    if values is None or shape is None:
        raise CorruptionError(f"sparse array {name!r} lacks its values or its shape")
    if mask.dtype != np.uint8 or shape.dtype != np.int64 or bool((shape < 0).any()):
        raise CorruptionError(f"sparse array {name!r} has a mask or a shape of the wrong type")
    size = 1
    for extent in shape.tolist():
        size *= extent
    if mask.ndim != 1 or shape.ndim != 1 or mask.size != (size + 7) // 8:
        raise CorruptionError(f"sparse array {name!r}: its mask does not fit its shape")
    bits = np.unpackbits(mask)
    if bool(bits[size:].any()) or values.shape != (int(bits.sum()),):
        raise CorruptionError(f"sparse array {name!r}: its values do not fit its mask")
    array = np.zeros(size, dtype=values.dtype)
    array[bits[:size].astype(bool)] = values
    return array.reshape(tuple(shape.tolist()))
