"""The format on disk: canonical, strict, readable by others, and deaf to hostile bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tests.workers.storage.bank_cases import draft, fill
from workers.errors import BankError, CorruptionError, LucaError
from workers.storage.bank_json import seal, unseal
from workers.storage.bank_manifest import Manifest, Ref, TaskRecord, decode_page
from workers.storage.bank_tensors import decode, encode, read_header
from workers.storage.filesystem import Storage

NUMBERS = st.one_of(
    st_numpy.floating_dtypes(sizes=(16, 32, 64), endianness="="),
    st_numpy.integer_dtypes(endianness="="),
    st_numpy.unsigned_integer_dtypes(endianness="="),
    st_numpy.boolean_dtypes(),
)
ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st_numpy.arrays(NUMBERS, st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
    max_size=4,
)


@settings(max_examples=30, deadline=None)
@given(ARRAYS)
def test_arrays_come_back_bit_for_bit_here_and_in_the_safetensors_package(
    arrays: dict[str, np.ndarray],
) -> None:
    data = encode(arrays)
    assert data == encode(dict(reversed(arrays.items())))
    for read in (decode(data, "x"), safetensors.numpy.load(data)):
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            assert read[name].shape == array.shape
            assert read[name].dtype == array.dtype
            assert read[name].tobytes() == array.tobytes()


@settings(max_examples=30, deadline=None)
@given(ARRAYS)
def test_what_the_safetensors_package_writes_is_read(arrays: dict[str, np.ndarray]) -> None:
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    read = decode(safetensors.numpy.save(contiguous, metadata={"a": "b"}), "x")
    assert {name: array.tobytes() for name, array in read.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }


def test_equal_arrays_have_equal_bytes_whatever_their_memory_layout() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    same = [np.asfortranarray(matrix), np.repeat(matrix, 2, axis=1)[:, ::2], matrix.astype(">f4")]
    assert {encode({"w": array}) for array in same} == {encode({"w": matrix})}


def test_arrays_that_are_read_cannot_be_changed_and_are_aligned() -> None:
    data = encode({"a": np.zeros(3, np.uint8), "b": np.zeros(3), "c": np.zeros(1, np.float16)})
    arrays = decode(data, "x")
    assert all(array.flags.aligned and not array.flags.writeable for array in arrays.values())


def raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(**changed: Any) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [2], "data_offsets": [0, 2], **changed}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        (2**62).to_bytes(8, "little") + b"{}",
        raw(b"{"),
        raw([]),
        raw(b"[" * 100_000),
        raw({"a": tensor()}, b"1"),
        raw({"a": tensor()}, b"123"),
        raw({"a": tensor(dtype="F33")}, b"12"),
        raw({"a": tensor(dtype=["U8"])}, b"12"),
        raw({"a": tensor(shape=[3])}, b"12"),
        raw({"a": tensor(shape=[-1, -2])}, b"12"),
        raw({"a": tensor(shape=[True, 2])}, b"12"),
        raw({"a": tensor(shape=[2.0])}, b"12"),
        raw({"a": tensor(shape=[2**60, 2**60])}, b"12"),
        raw({"a": tensor(shape=[1] * 9 + [2])}, b"12"),
        raw({"a": tensor(data_offsets=[2, 0])}, b"12"),
        raw({"a": tensor(data_offsets=[1, 3])}, b"123"),
        raw({"a": tensor(data_offsets=[0])}, b"12"),
        raw({"a": tensor(extra=1)}, b"12"),
        raw({"a": tensor(), "b": tensor()}, b"12"),
        raw({"a": tensor(), "b": tensor(data_offsets=[1, 3])}, b"123"),
        raw(
            b'{"a":'
            + json.dumps(tensor()).encode()
            + b',"a":'
            + json.dumps(tensor()).encode()
            + b"}",
            b"12",
        ),
    ],
)
def test_bytes_that_are_not_safetensors_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="the file"):
        decode(data, "the file")


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_change_of_a_header_gives_anything_but_arrays_or_one_clear_error(
    data: st.DataObject,
) -> None:
    good = bytearray(encode({"a": np.arange(6, dtype=np.float32), "b": np.zeros((2, 3), np.int8)}))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        infos = read_header(bytes(good), "x")
    except CorruptionError:
        return
    assert sum(info.size for info in infos) <= len(good)
    safetensors.numpy.load(bytes(good))


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
            max_leaves=5,
        ),
        max_size=4,
    ).filter(lambda body: "check" not in body),
    st.data(),
)
def test_a_sealed_file_gives_back_its_body_or_says_it_is_damaged(
    body: dict[str, Any], data: st.DataObject
) -> None:
    sealed = seal(body)
    assert unseal(sealed, "x") == body
    where = data.draw(st.integers(0, len(sealed) - 1))
    flipped = bytearray(sealed)
    flipped[where] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(flipped), sealed[:where], sealed + b" ", b" " + sealed):
        with pytest.raises(CorruptionError, match="damaged"):
            unseal(damaged, "x")


def manifest_body(tmp_path: Path) -> dict[str, Any]:
    version = fill(Storage.open(str(tmp_path)), tasks=1).load()
    return unseal(version.manifest.to_bytes(), "x")


@pytest.mark.parametrize(
    "changed",
    [
        {"format": "other"},
        {"version": -1},
        {"version": True},
        {"version": "1"},
        {"digest": "../../etc/passwd"},
        {"digest": "A" * 64},
        {"pages": [{"digest": "../" * 21 + "x", "size": 1, "tasks": 1}]},
        {"pages": [{"digest": "0" * 64, "size": 1}]},
        {"pages": ["0" * 64]},
        {"pages": {}},
        {"shared": {"whitening": {"digest": "/etc/passwd", "size": 1}}},
        {"shared": {"../x": {"digest": "0" * 64, "size": 1}}},
        {"shared": {"whitening": {"digest": "0" * 64, "size": 1, "path": "x"}}},
        {"counts": {"tasks": 1}},
        {"backbone": None},
        {"unknown": 1},
    ],
)
def test_a_manifest_that_says_anything_unexpected_is_refused(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    body = manifest_body(tmp_path)
    Manifest.from_bytes(seal(body), "the manifest")
    with pytest.raises(CorruptionError, match="the manifest"):
        Manifest.from_bytes(seal({**body, **changed}), "the manifest")


def test_a_newer_format_is_refused_as_such(tmp_path: Path) -> None:
    body = {**manifest_body(tmp_path), "format_version": 2}
    with pytest.raises(BankError, match="format version 2, this program reads 1"):
        Manifest.from_bytes(seal(body), "x")


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "../x"},
        {"id": ""},
        {"classes": [1]},
        {"classes": ["\x1b[31mred"]},
        {"name": "two\nlines"},
        {"domain": "\x9b"},
        {"objects": {"module": {"digest": "x", "size": 1}}},
        {"objects": {"a/b": {"digest": "0" * 64, "size": 1}}},
        {"objects": []},
        {"more": 1},
    ],
)
def test_a_task_record_that_says_anything_unexpected_is_refused(changed: dict[str, Any]) -> None:
    record = TaskRecord("a", "A", "", ("x",), {}, {}, {}).to_json()
    page = {"format": "luca-bank", "tasks": [record]}
    assert decode_page(json.dumps(page).encode(), "x")[0].id == "a"
    page["tasks"] = [{**record, **changed}]
    with pytest.raises(CorruptionError):
        decode_page(json.dumps(page).encode(), "x")


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_arbitrary_bytes_are_never_a_manifest_ref_or_page(data: bytes) -> None:
    for parse in (Manifest.from_bytes, Ref.from_bytes, decode_page):
        with pytest.raises(LucaError):
            parse(data, "x")


def test_info_is_not_part_of_what_identifies_a_task(tmp_path: Path) -> None:
    record = fill(Storage.open(str(tmp_path)), tasks=1).load().tasks[0]
    assert replace(record, info={"other": 1}).content_digest == record.content_digest
    assert replace(record, name="other").content_digest != record.content_digest


def test_stored_objects_are_readable_without_this_program(tmp_path: Path) -> None:
    version = fill(Storage.open(str(tmp_path)), tasks=1).load()
    ref = version.tasks[0].objects["module"]
    read = safetensors.numpy.load_file(tmp_path / "banks/b/objects" / ref.digest)
    np.testing.assert_array_equal(read["mlp.0.weight"], draft(0).arrays["module"]["mlp.0.weight"])
    manifest = json.loads((tmp_path / "banks/b/versions/00000001.json").read_text())
    assert manifest["counts"]["tasks"] == 1
