"""The feature cache: what is written comes back as it was, or a damaged file is named."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.errors import CorruptionError, DataError, StorageError
from workers.storage import features as features_module
from workers.storage.features import (
    FeatureCache,
    FeaturePart,
    FeatureSet,
    PartKey,
    cache_key,
    part_digest,
    ready_key,
)
from workers.storage.filesystem import Storage

KEY = PartKey(cache_key("ab" * 16, "float32"), "0123456789abcdef" * 2, 0)


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    return FeatureCache(Storage.open(tmp_path / "store"))


def matrix(n: int = 20, d: int = 6, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def names(n: int, prefix: str = "s") -> list[str]:
    return [f"{prefix}{i:04d}" for i in range(n)]


def part(n: int, seed: int, d: int = 6, dtype: str = "float32") -> FeaturePart:
    ids = pa.array(names(n, f"p{seed}-"))
    return FeaturePart(PartKey("b", f"{seed:032x}"), ids, matrix(n, d, dtype, seed))


# -- write and read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", [0, 1, 20])
def test_what_is_written_comes_back_as_it_was(cache: FeatureCache, dtype: str, n: int) -> None:
    written = cache.write(KEY, names(n), matrix(n, dtype=dtype))
    back = cache.read(KEY)
    assert back.key == KEY
    assert back.ids.to_pylist() == names(n)
    assert back.features.dtype == np.dtype(dtype)
    assert np.array_equal(back.features, matrix(n, dtype=dtype))
    assert back.width == 6
    assert written == cache.storage.size(KEY.path)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 70),
    texts=st.lists(st.text(), max_size=3),
    view=st.integers(0, 999),
)
def test_any_shape_ids_and_view_survive(n: int, d: int, texts: list[str], view: int) -> None:
    cache = FeatureCache(Storage.open((pafs._MockFileSystem(), "root")))
    ids = [f"{i} {'/'.join(texts)}" for i in range(n)]
    key = PartKey("backbone", f"{n:032x}", view)
    cache.write(key, ids, matrix(n, d))
    back = cache.read(key)
    assert back.ids.to_pylist() == ids
    assert np.array_equal(back.features, matrix(n, d))


def test_a_read_part_is_a_read_only_view_of_the_mapped_file(cache: FeatureCache) -> None:
    cache.write(KEY, names(20), matrix())
    before = pa.total_allocated_bytes()
    features = cache.read(KEY).features
    assert pa.total_allocated_bytes() == before
    assert not features.flags.owndata
    with pytest.raises(ValueError):
        features[0, 0] = 1.0


def test_reading_many_parts_keeps_no_file_open(cache: FeatureCache) -> None:
    cache.write(KEY, names(20), matrix())
    before = len(os.listdir("/proc/self/fd"))
    parts = [cache.read(KEY) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(parts) == 50


def test_the_file_is_plain_arrow_that_anyone_can_read(cache: FeatureCache) -> None:
    cache.write(KEY, names(20), matrix())
    table = pa.ipc.open_file(str(cache.storage.local_path(KEY.path))).read_all()
    assert table.column("feature").type == pa.list_(pa.float32(), 6)
    assert np.array_equal(np.array(table.column("feature").to_pylist(), np.float32), matrix())


def test_the_same_part_is_the_same_file(cache: FeatureCache) -> None:
    cache.write(KEY, names(20), matrix())
    first = cache.storage.read_bytes(KEY.path)
    cache.write(KEY, names(20), matrix())
    assert cache.storage.read_bytes(KEY.path) == first


def test_the_path_of_a_part_says_backbone_part_and_view() -> None:
    key = PartKey("ready-features-6-float32", "ff00", 12)
    assert key.path == "features/ready-features-6-float32/ff/ff00.v012.arrow"
    assert ready_key(6, "float32") == key.backbone


def test_a_cache_works_on_a_filesystem_that_cannot_be_mapped() -> None:
    cache = FeatureCache(Storage.open((pafs._MockFileSystem(), "bucket/root")))
    cache.write(KEY, names(20), matrix())
    assert not cache.storage.is_local
    assert np.array_equal(cache.read(KEY).features, matrix())
    other = PartKey(KEY.backbone, "ff" * 16)
    assert cache.has_many([KEY, other]) == {KEY}
    assert cache.size().parts == 1


def test_ids_that_look_like_a_checksum_do_no_harm(cache: FeatureCache) -> None:
    ids = [f"xxh3:{'0' * 32}", f"xxh3:{'f' * 32}"]
    cache.write(KEY, ids, matrix(2))
    assert cache.read(KEY).ids.to_pylist() == ids


def test_a_key_that_does_not_fit_the_files_head_is_refused(cache: FeatureCache) -> None:
    with pytest.raises(StorageError, match="too long for a feature file"):
        cache.write(PartKey("b" * 5000, "aa" * 16), names(20), matrix())


def test_what_is_there_is_known_without_reading(cache: FeatureCache) -> None:
    other = PartKey(KEY.backbone, "ff" * 16)
    assert not cache.has(KEY)
    assert cache.has_many([KEY, other]) == set()
    size = cache.write(KEY, names(20), matrix())
    assert cache.has(KEY)
    assert cache.has_many([KEY, other]) == {KEY}
    assert (cache.size().parts, cache.size().bytes) == (1, size)


def test_a_part_that_is_not_there_is_a_storage_error(cache: FeatureCache) -> None:
    with pytest.raises(StorageError, match=r"0123456789abcdef\.v000\.arrow"):
        cache.read(KEY)


def test_a_key_cannot_leave_the_storage(cache: FeatureCache) -> None:
    with pytest.raises(StorageError, match="not a plain relative path"):
        cache.write(PartKey("../..", "aa"), names(20), matrix())


def test_two_writers_of_one_part_harm_nobody(cache: FeatureCache) -> None:
    expected = matrix(200)
    faults: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                cache.write(KEY, names(200), expected)
                assert np.array_equal(cache.read(KEY).features, expected)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(list(cache.storage.local_path(KEY.path).parent.iterdir())) == 1


def test_a_mapped_part_outlives_its_replacement(cache: FeatureCache) -> None:
    cache.write(KEY, names(20), matrix())
    old = cache.read(KEY)
    cache.write(KEY, names(20), matrix(seed=1))
    assert np.array_equal(old.features, matrix())
    assert np.array_equal(cache.read(KEY).features, matrix(seed=1))


def test_a_cache_can_be_sent_to_other_processes(cache: FeatureCache) -> None:
    cache.write(KEY, names(20), matrix())
    assert np.array_equal(pickle.loads(pickle.dumps(cache)).read(KEY).features, matrix())  # noqa: S301


def test_the_cache_needs_no_torch() -> None:
    code = (
        "import sys, workers.storage.features; print('torch' in sys.modules, 'ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# -- damage --------------------------------------------------------------------------------------------------


def damage(cache: FeatureCache, content: bytes) -> None:
    cache.storage.local_path(KEY.path).write_bytes(content)
    features_module._verified.clear()


def test_a_flipped_bit_anywhere_is_noticed(cache: FeatureCache) -> None:
    cache.write(KEY, names(20), matrix())
    good = cache.storage.read_bytes(KEY.path)
    rng = random.Random(0)
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        damage(cache, bytes(bad))
        with pytest.raises(CorruptionError, match="is damaged"):
            cache.read(KEY)


def test_a_file_cut_anywhere_is_noticed(cache: FeatureCache) -> None:
    cache.write(KEY, names(20), matrix())
    good = cache.storage.read_bytes(KEY.path)
    for length in range(0, len(good), 7):
        damage(cache, good[:length])
        with pytest.raises(CorruptionError, match="is damaged"):
            cache.read(KEY)


def test_bytes_behind_the_end_are_noticed(cache: FeatureCache) -> None:
    cache.write(KEY, names(20), matrix())
    damage(cache, cache.storage.read_bytes(KEY.path) + b"\0")
    with pytest.raises(CorruptionError):
        cache.read(KEY)


def test_swapped_rows_are_noticed(cache: FeatureCache) -> None:
    cache.write(KEY, names(20), matrix())
    good = cache.storage.read_bytes(KEY.path)
    rows = matrix()
    swapped = good.replace(rows.tobytes(), rows[::-1].tobytes())
    assert swapped != good
    damage(cache, swapped)
    with pytest.raises(CorruptionError):
        cache.read(KEY)


def test_a_file_in_another_parts_place_is_noticed(cache: FeatureCache) -> None:
    other = PartKey(KEY.backbone, "ee" * 16)
    cache.write(other, names(20), matrix())
    cache.write(KEY, names(20), matrix())
    damage(cache, cache.storage.read_bytes(other.path))
    with pytest.raises(CorruptionError, match="it holds PartKey"):
        cache.read(KEY)


def test_a_file_is_hashed_once_in_a_process_and_again_when_it_changes(
    cache: FeatureCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    real = features_module.checksum_fault
    monkeypatch.setattr(
        features_module, "checksum_fault", lambda buffer: looks.append(1) or real(buffer)
    )
    cache.write(KEY, names(20), matrix())
    for _ in range(3):
        cache.read(KEY)
    assert len(looks) == 1
    cache.write(KEY, names(20), matrix(seed=2))
    cache.read(KEY)
    assert len(looks) == 2


# -- bad features --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_feature_that_is_not_finite_is_refused_by_name(
    cache: FeatureCache, value: float, dtype: str
) -> None:
    bad = matrix(dtype=dtype)
    bad[7, 3] = value
    with pytest.raises(DataError, match="'s0007' is NaN or infinite"):
        cache.write(KEY, names(20), bad)
    assert not cache.has(KEY)


def test_large_finite_features_are_allowed(cache: FeatureCache) -> None:
    large = np.full((4, 6), 3e38, dtype=np.float32)
    cache.write(KEY, names(4), large)
    assert np.array_equal(cache.read(KEY).features, large)


def test_features_that_do_not_match_their_ids_are_refused(cache: FeatureCache) -> None:
    with pytest.raises(DataError, match="20 features for 19 sample ids"):
        cache.write(KEY, names(19), matrix())
    with pytest.raises(DataError, match=r"float64 \[20, 6\]"):
        cache.write(KEY, names(20), matrix(dtype="float64"))
    with pytest.raises(DataError, match=r"float32 \[6\]"):
        cache.write(KEY, names(6), matrix()[0])


def test_a_transposed_matrix_is_written_by_value(cache: FeatureCache) -> None:
    turned = matrix(6, 20).T
    cache.write(KEY, names(20), turned)
    assert np.array_equal(cache.read(KEY).features, turned)


# -- tables --------------------------------------------------------------------------------------------------


def test_a_part_travels_as_a_table_that_shares_its_memory() -> None:
    original = part(5, 1)
    back = FeaturePart.from_table(original.to_table())
    assert back.key == original.key
    assert back.ids.equals(original.ids)
    assert np.shares_memory(back.features, original.features)


def test_a_sliced_or_chunked_table_is_read_by_value() -> None:
    table = part(9, 1).to_table()
    chunked = pa.concat_tables([table.slice(2, 3), table.slice(5, 4)])
    back = FeaturePart.from_table(chunked)
    assert np.array_equal(back.features, part(9, 1).features[2:])
    assert back.ids.to_pylist() == names(9, "p1-")[2:]


def test_another_table_is_refused() -> None:
    with pytest.raises(DataError, match="no feature part"):
        FeaturePart.from_table(pa.table({"id": ["a"], "feature": [1.0]}))
    table = part(3, 1).to_table()
    with pytest.raises(DataError, match="no feature part"):
        FeaturePart.from_table(table.set_column(1, "feature", pa.array([1.0, 2.0, 3.0])))


# -- keys ----------------------------------------------------------------------------------------------------


def samples(ids: list[str], content: list[str]) -> pa.Table:
    return pa.table({"id": ids, "content": content})


def test_a_parts_digest_depends_on_ids_content_order_and_for_views_on_the_seed() -> None:
    base = samples(["a", "b"], ["1", "2"])
    digest = part_digest(base, view=0, seed=1)
    assert len(digest) == 32
    assert part_digest(base, view=0, seed=2) == digest
    assert part_digest(base, view=1, seed=1) == part_digest(base, view=2, seed=1)
    different = [
        part_digest(samples(["a", "c"], ["1", "2"]), view=0, seed=1),
        part_digest(samples(["a", "b"], ["1", "3"]), view=0, seed=1),
        part_digest(samples(["b", "a"], ["2", "1"]), view=0, seed=1),
        part_digest(samples(["a"], ["1"]), view=0, seed=1),
        part_digest(samples(["a1", "b"], ["", "2"]), view=0, seed=1),
        part_digest(base, view=1, seed=1),
        part_digest(base, view=1, seed=2),
    ]
    assert len({digest, *different}) == 8


# -- feature sets --------------------------------------------------------------------------------------------


def stacked(parts: list[FeaturePart]) -> np.ndarray:
    return np.concatenate([p.features.astype(np.float32) for p in parts])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.lists(st.integers(0, 10**6), max_size=40),
    st.sampled_from(["float32", "float16"]),
    st.sampled_from([0, 10**9]),
    st.sampled_from([0, 6]),
)
def test_gathering_equals_indexing_the_stacked_parts(
    sizes: list[int], picks: list[int], dtype: str, limit: int, grouped: int
) -> None:
    parts = [part(n, i, dtype=dtype) for i, n in enumerate(sizes)]
    whole = FeatureSet.concatenate(parts)
    rows = np.array([p % max(1, sum(sizes)) for p in picks if sum(sizes)], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.storage.feature_set.MATERIALISE_BELOW", limit)
        patch.setattr("workers.storage.feature_set._ROWS_FOR_A_PART", grouped)
        out = whole.gather(rows)
    assert out.dtype == np.float32
    assert out.flags.c_contiguous
    assert out.flags.writeable
    assert np.array_equal(out, stacked(parts)[rows])
    assert len(whole) == sum(sizes)


def test_any_rows_of_any_parts_make_a_set() -> None:
    parts = [part(4, 0), part(3, 1)]
    chosen = FeatureSet(parts, np.array([1, 0, 1]), np.array([2, 3, 0]))
    assert np.array_equal(chosen.materialise(), stacked(parts)[[6, 3, 4]])
    assert chosen.ids().to_pylist() == ["p1-0002", "p0-0003", "p1-0000"]
    assert (len(chosen), chosen.width) == (3, 6)


def test_rows_are_selected_by_id_in_the_order_asked_for() -> None:
    parts = [part(4, 0), part(3, 1)]
    chosen = FeatureSet.select(parts, ["p1-0001", "p0-0000", "p1-0002"])
    assert np.array_equal(chosen.gather(np.arange(3)), stacked(parts)[[5, 0, 6]])
    with pytest.raises(DataError, match="'nobody' has no features"):
        FeatureSet.select(parts, ["p1-0001", "nobody"])


def test_a_set_of_nothing_is_empty() -> None:
    for nothing in (FeatureSet.concatenate([]), FeatureSet.concatenate([part(0, 1)])):
        assert len(nothing) == 0
        assert nothing.gather(np.array([], dtype=np.int64)).shape == (0, nothing.width)
        assert len(nothing.ids()) == 0


def test_a_materialised_set_cannot_be_changed_by_accident() -> None:
    whole = FeatureSet.concatenate([part(4, 0), part(3, 1)])
    with pytest.raises(ValueError):
        whole.materialise()[0, 0] = 1
    assert whole.materialise() is whole.materialise()


def test_parts_of_different_widths_or_a_wrong_index_are_refused() -> None:
    with pytest.raises(DataError, match="differ in width: 5 and 6"):
        FeatureSet.concatenate([part(4, 0), part(3, 1, d=5)])
    for parts, rows in (([0], [4]), ([1], [0]), ([0], [-1]), ([-1], [0])):
        with pytest.raises(DataError, match="outside its parts"):
            FeatureSet([part(4, 0)], np.array(parts), np.array(rows))


def test_gathering_from_a_large_mapped_set_copies_only_what_is_asked_for(
    cache: FeatureCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.storage.feature_set.MATERIALISE_BELOW", 1000)
    keys = [PartKey("b", f"{i:032x}") for i in range(8)]
    for i, key in enumerate(keys):
        cache.write(key, names(64, f"{i}-"), matrix(64, 32, seed=i))
    whole = FeatureSet.concatenate([cache.read(key) for key in keys])
    rows = np.arange(0, len(whole), 50)
    expected = np.concatenate([matrix(64, 32, seed=i) for i in range(8)])
    assert np.array_equal(whole.gather(rows), expected[rows])
    assert whole._matrix is None
