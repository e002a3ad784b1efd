"""The compact form of sparse modules."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workers.errors import CorruptionError, DataError
from workers.modeling.sparse import decode, encode


def mostly_zero(size: int = 4096, nonzero: int = 40) -> np.ndarray:
    array = np.zeros(size, dtype=np.float32)
    array[np.random.RandomState(0).permutation(size)[:nonzero]] = 1.5
    return array.reshape(64, -1)


def size_in_bytes(arrays: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(
        dtype=st.sampled_from(["<f4", "<f8", "<f2", "<i8"]),
        shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12),
        fill=st.just(0),
    )
)
def test_decoding_gives_back_every_bit(array):
    assert same_bits(decode(encode({"w": array}))["w"], array)


def test_negative_zero_and_nan_payloads_survive():
    array = np.zeros(2000, dtype=np.float32)
    array[3] = -0.0
    array[5:7].view(np.uint32)[:] = [0x7FC00001, 0xFFC0BEEF]
    encoded = encode({"w": array})
    assert "w#mask" in encoded
    assert encoded["w#values"].size == 3
    assert same_bits(decode(encoded)["w"], array)


def test_a_sparse_array_takes_a_bit_an_entry_and_its_values():
    encoded = encode({"w": mostly_zero()})
    assert sorted(encoded) == ["w#mask", "w#shape", "w#values"]
    assert size_in_bytes(encoded) == 4096 // 8 + 40 * 4 + 2 * 8


def test_a_dense_array_stays_as_it_is():
    array = np.ones((8, 8), dtype=np.float32)
    assert list(encode({"w": array})) == ["w"]


def test_the_encoding_is_never_larger_than_the_arrays():
    for nonzero in (0, 1, 2000, 3900, 3968, 4096):
        arrays = {"w": mostly_zero(nonzero=nonzero)}
        assert size_in_bytes(encode(arrays)) <= size_in_bytes(arrays)


def test_a_transposed_array_keeps_its_values_and_shape():
    array = mostly_zero().T
    assert np.array_equal(decode(encode({"w": array}))["w"], array)


def test_names_with_the_mark_are_refused():
    with pytest.raises(DataError, match="contains '#'"):
        encode({"w#mask": np.zeros(3)})


def test_objects_are_refused():
    with pytest.raises(DataError, match="only plain numbers"):
        encode({"w": np.array([object()])})


@pytest.mark.parametrize("part", ["w#values", "w#shape", "w#mask"])
def test_a_missing_part_is_found(part):
    encoded = encode({"w": mostly_zero()})
    del encoded[part]
    with pytest.raises(CorruptionError, match="w"):
        decode(encoded)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("w#values", np.ones(39, np.float32)),
        ("w#shape", np.array([64, 65])),
        ("w#shape", np.array([-64, -64])),
        ("w#shape", np.array([2**40, 2**40])),
        ("w#mask", np.zeros(512, np.int8)),
        ("w#mask", np.zeros(511, np.uint8)),
    ],
)
def test_parts_that_do_not_fit_are_found(part, value):
    with pytest.raises(CorruptionError, match="sparse array 'w'"):
        decode({**encode({"w": mostly_zero()}), part: value})


def test_storage_can_use_it_without_torch():
    code = "import sys, workers.modeling.sparse; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
