"""Extraction: which features come out, what is counted, and what happens to pictures that cannot be read."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from workers.errors import BackboneError, DataError
from workers.extraction import Extractor, PartRequest
from workers.modeling.backbone import Backbone, BackboneSettings
from workers.modeling.views import view_generator
from workers.samples import SampleReader
from workers.storage import features as features_module
from workers.storage.features import FeatureCache, FeatureSettings
from workers.storage.filesystem import Storage

N = 11


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 26, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@dataclass
class Pictures:
    """A reader of pictures held in memory that counts what it is asked for."""

    data: list[Any]
    kind: str = "images"
    reads: list[int] = field(default_factory=list)

    def read(self, samples: pa.Table) -> list[Any]:
        self.reads.append(len(samples))
        return [self.data[row] for row in samples.column("row").to_pylist()]


@dataclass
class Ready:
    """A reader of ready features."""

    features: np.ndarray
    kind: str = "features"

    def read(self, samples: pa.Table) -> np.ndarray:
        return self.features[samples.column("row").to_numpy()]


def table(data: list[Any]) -> pa.Table:
    n = len(data)
    return pa.table(
        {
            "id": [f"sample-{i:02d}" for i in range(n)],
            "content": [
                hashlib.blake2b(f"{i}".encode(), digest_size=16).hexdigest() for i in range(n)
            ],
            "location": ["folder/pictures.parquet"] * n,
            "row": pa.array(range(n), pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return Backbone.load(BackboneSettings())


@pytest.fixture
def make(tmp_path: Path, backbone: Backbone) -> Callable[..., Extractor]:
    def build(reader: Any, seed: int = 1, root: str = "store", **settings: Any) -> Extractor:
        ready = reader.kind == "features"
        return Extractor(
            reader=reader,
            backbone=None if ready else backbone,
            settings=FeatureSettings(**settings),
            seed=seed,
            storage=Storage.open(tmp_path / root),
            feature_width=reader.features.shape[1] if ready else None,
        )

    return build


PICTURES = [png(i) for i in range(N)]


def by_hand(backbone: Backbone, rows: list[int]) -> np.ndarray:
    views = [backbone.transform.test(Image.open(io.BytesIO(PICTURES[r]))) for r in rows]
    return backbone.embed(np.stack([np.asarray(v) for v in views])).numpy()


# -- features ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("batch", [1, 4, 64])
def test_features_are_the_backbones_in_the_samples_order(
    make: Callable[..., Extractor], backbone: Backbone, threads: int, batch: int
) -> None:
    extractor = make(Pictures(PICTURES), batch_size=batch, decode_threads=threads)
    result = extractor.extract(PartRequest(table(PICTURES)))
    assert result.table.column("id").to_pylist() == table(PICTURES).column("id").to_pylist()
    np.testing.assert_allclose(
        result.part.features, by_hand(backbone, list(range(N))), rtol=1e-4, atol=1e-5
    )
    assert (result.images, result.skipped, result.notes, result.cached) == (N, (), (), False)


def test_threads_change_no_bit(make: Callable[..., Extractor]) -> None:
    tables = [
        make(Pictures(PICTURES), root=f"t{threads}", batch_size=4, decode_threads=threads)
        .extract(PartRequest(table(PICTURES), view=view))
        .table
        for threads in (0, 3)
        for view in (0, 2)
    ]
    assert tables[0].equals(tables[2])
    assert tables[1].equals(tables[3])


def test_a_part_does_not_depend_on_what_else_the_extractor_computes(
    make: Callable[..., Extractor],
) -> None:
    samples = table(PICTURES)
    busy = make(Pictures(PICTURES), root="busy", batch_size=4)
    busy.extract(PartRequest(samples.slice(0, 5)))
    late = busy.extract(PartRequest(samples.slice(5, 6)))
    alone = make(Pictures(PICTURES), root="alone", batch_size=4).extract(
        PartRequest(samples.slice(5, 6))
    )
    assert late.key == alone.key
    assert late.table.equals(alone.table)


def test_open_pictures_are_taken_as_they_are(
    make: Callable[..., Extractor], backbone: Backbone
) -> None:
    opened = [Image.open(io.BytesIO(data)).convert("RGB") for data in PICTURES]
    result = make(Pictures(opened)).extract(PartRequest(table(opened)))
    np.testing.assert_allclose(
        result.part.features, by_hand(backbone, list(range(N))), rtol=1e-4, atol=1e-5
    )


def test_an_augmented_view_is_seeded_by_content_alone(
    make: Callable[..., Extractor], backbone: Backbone
) -> None:
    samples = table(PICTURES)
    whole = make(Pictures(PICTURES), views=3).extract(PartRequest(samples, view=3))
    content = samples.column("content")[6].as_py()
    crop = backbone.transform.train(
        Image.open(io.BytesIO(PICTURES[6])), view_generator(1, content, 3)
    )
    expected = backbone.embed(np.array(crop)[None]).numpy()
    np.testing.assert_allclose(whole.part.features[6:7], expected, rtol=1e-4, atol=1e-5)
    part = make(Pictures(PICTURES), views=3).extract(PartRequest(samples.slice(6, 1), view=3))
    np.testing.assert_allclose(part.part.features, expected, rtol=1e-4, atol=1e-5)


def test_views_and_seeds_have_their_own_keys(make: Callable[..., Extractor]) -> None:
    samples = table(PICTURES)
    first, second = make(Pictures(PICTURES), seed=1), make(Pictures(PICTURES), seed=2)
    keys = {e.key(PartRequest(samples, view=v)).path for e in (first, second) for v in (0, 1, 2)}
    assert len(keys) == 5  # the test view does not depend on the seed


def test_the_cache_holds_the_dtype_asked_for(make: Callable[..., Extractor]) -> None:
    wide = make(Pictures(PICTURES)).extract(PartRequest(table(PICTURES)))
    narrow = make(Pictures(PICTURES), dtype="float16").extract(PartRequest(table(PICTURES)))
    assert narrow.part.features.dtype == np.float16
    assert np.array_equal(narrow.part.features, wide.part.features.astype(np.float16))
    assert narrow.key.backbone != wide.key.backbone


def test_an_empty_part_is_an_empty_table(make: Callable[..., Extractor]) -> None:
    result = make(Pictures(PICTURES)).extract(PartRequest(table(PICTURES).slice(0, 0)))
    assert result.part.features.shape == (0, 192)


def test_readers_of_the_tests_follow_the_protocol() -> None:
    assert isinstance(Pictures([]), SampleReader)


# -- cache ---------------------------------------------------------------------------------------------------


def test_a_cached_part_costs_neither_reading_nor_the_backbone(
    make: Callable[..., Extractor],
) -> None:
    reader = Pictures(PICTURES)
    first = make(reader).extract(PartRequest(table(PICTURES)))
    reads = len(reader.reads)
    again = make(reader).extract(PartRequest(table(PICTURES)))
    assert (again.images, again.cached, again.stored_bytes) == (0, True, 0)
    assert len(reader.reads) == reads
    assert again.table.equals(first.table)


def test_a_damaged_part_is_computed_again_and_said(make: Callable[..., Extractor]) -> None:
    extractor = make(Pictures(PICTURES))
    first = extractor.extract(PartRequest(table(PICTURES)))
    path = extractor._cache.storage.local_path(first.key.path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    features_module._verified.clear()
    again = extractor.extract(PartRequest(table(PICTURES)))
    assert again.images == N
    assert "computed again: feature file" in again.notes[0]
    assert again.table.equals(first.table)
    assert make(Pictures(PICTURES)).extract(PartRequest(table(PICTURES))).cached


def test_a_part_that_vanishes_after_the_look_is_computed(
    make: Callable[..., Extractor], monkeypatch: pytest.MonkeyPatch
) -> None:
    extractor = make(Pictures(PICTURES))
    looks = iter([True, False])
    monkeypatch.setattr(FeatureCache, "has", lambda cache, key: next(looks))
    assert extractor.extract(PartRequest(table(PICTURES))).images == N


# -- unreadable pictures -------------------------------------------------------------------------------------


def broken(*rows: int) -> Pictures:
    return Pictures([b"no picture" if i in rows else data for i, data in enumerate(PICTURES)])


@pytest.mark.parametrize("threads", [0, 2])
def test_an_unreadable_picture_stops_the_part_and_is_named(
    make: Callable[..., Extractor], threads: int
) -> None:
    extractor = make(broken(3), decode_threads=threads)
    with pytest.raises(
        DataError, match=r"sample-03 \(row 3 of folder/pictures.parquet\)' is not in"
    ):
        extractor.extract(PartRequest(table(PICTURES)))
    assert not extractor._cache.has(extractor.key(PartRequest(table(PICTURES))))


@pytest.mark.parametrize("threads", [0, 2])
def test_tolerated_pictures_are_left_out_counted_and_named(
    make: Callable[..., Extractor], backbone: Backbone, threads: int
) -> None:
    extractor = make(broken(0, 5), tolerate_unreadable=2, batch_size=4, decode_threads=threads)
    result = extractor.extract(PartRequest(table(PICTURES)))
    good = [r for r in range(N) if r not in (0, 5)]
    assert result.table.column("id").to_pylist() == [f"sample-{r:02d}" for r in good]
    np.testing.assert_allclose(result.part.features, by_hand(backbone, good), rtol=1e-4, atol=1e-5)
    assert result.images == len(good)
    assert [s.partition("'")[2][:9] for s in result.skipped] == ["sample-00", "sample-05"]
    again = extractor.extract(PartRequest(table(PICTURES)))
    assert again.cached
    assert [s.partition("'")[2][:9] for s in again.skipped] == ["sample-00", "sample-05"]


def test_threads_change_no_bit_when_pictures_are_left_out(make: Callable[..., Extractor]) -> None:
    tables = [
        make(broken(1), root=f"t{n}", tolerate_unreadable=1, batch_size=4, decode_threads=n)
        .extract(PartRequest(table(PICTURES)))
        .table
        for n in (0, 2)
    ]
    assert tables[0].equals(tables[1])


def test_one_picture_more_than_tolerated_is_one_too_many(make: Callable[..., Extractor]) -> None:
    with pytest.raises(
        DataError, match=r"sample-07.*\(and 2 more before it.*tolerate_unreadable=2"
    ):
        make(broken(0, 5, 7), tolerate_unreadable=2).extract(PartRequest(table(PICTURES)))


def test_a_stricter_tolerance_looks_again_at_what_was_left_out(
    make: Callable[..., Extractor],
) -> None:
    make(broken(4), tolerate_unreadable=1).extract(PartRequest(table(PICTURES)))
    with pytest.raises(DataError, match="sample-04"):
        make(broken(4)).extract(PartRequest(table(PICTURES)))
    mended = make(Pictures(PICTURES)).extract(PartRequest(table(PICTURES)))
    assert len(mended.table) == N


def test_a_part_without_any_readable_picture_is_empty(make: Callable[..., Extractor]) -> None:
    result = make(broken(*range(N)), tolerate_unreadable=N).extract(PartRequest(table(PICTURES)))
    assert result.part.features.shape == (0, 192)
    assert len(result.skipped) == N


def test_a_file_that_is_one_sample_is_named_by_its_path(make: Callable[..., Extractor]) -> None:
    samples = table(PICTURES).set_column(3, "row", pa.array([-1] * N, pa.int64()))
    reader = broken()
    reader.read = lambda part: [b""] * len(part)  # type: ignore[method-assign]
    with pytest.raises(DataError, match=r"image 'folder/pictures.parquet' is empty"):
        make(reader).extract(PartRequest(samples))


def test_the_pixel_limit_is_the_settings(make: Callable[..., Extractor]) -> None:
    with pytest.raises(DataError, match=r"features\.max_pixels allows 519"):
        make(Pictures(PICTURES), max_pixels=519).extract(PartRequest(table(PICTURES)))


# -- memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        MemoryError(),
    ],
)
def test_out_of_memory_halves_the_batch_and_goes_on(
    make: Callable[..., Extractor],
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    tried = []
    real = backbone.embed

    def embed(pixels: np.ndarray) -> torch.Tensor:
        tried.append(len(pixels))
        if len(pixels) > 3:
            raise error
        return real(pixels)

    extractor = make(Pictures(PICTURES), batch_size=8)
    monkeypatch.setattr(backbone, "embed", embed)
    result = extractor.extract(PartRequest(table(PICTURES)))
    assert tried == [8, 4, 2, 2, 2, 2, 2, 1]
    assert result.images == N
    assert len(result.notes) == 2
    assert "out of memory on cpu with 8 pictures: goes on with batches of 4" in result.notes[0]
    monkeypatch.undo()
    np.testing.assert_allclose(
        result.part.features, by_hand(backbone, list(range(N))), rtol=1e-4, atol=1e-5
    )


def test_a_picture_that_never_fits_is_a_backbone_error(
    make: Callable[..., Extractor], backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def embed(pixels: np.ndarray) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(backbone, "embed", embed)
    with pytest.raises(
        BackboneError, match="does not fit into the memory of cpu even with one picture"
    ):
        make(Pictures(PICTURES)).extract(PartRequest(table(PICTURES)))


def test_other_faults_of_the_backbone_are_not_hidden(
    make: Callable[..., Extractor], backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def embed(pixels: np.ndarray) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(backbone, "embed", embed)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        make(Pictures(PICTURES)).extract(PartRequest(table(PICTURES)))


def test_large_files_are_read_a_few_batches_at_a_time(
    make: Callable[..., Extractor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.picture_batches.READ_BYTES", 4 * len(PICTURES[0]) + 100)
    reader = Pictures(PICTURES)
    make(reader, batch_size=2).extract(PartRequest(table(PICTURES)))
    assert max(reader.reads) <= 4
    assert sum(reader.reads) == N


# -- ready features ------------------------------------------------------------------------------------------


def test_ready_features_go_to_the_cache_without_a_backbone(
    make: Callable[..., Extractor],
) -> None:
    features = np.random.default_rng(0).standard_normal((N, 7)).astype(np.float16)
    extractor = make(Ready(features))
    result = extractor.extract(PartRequest(table(PICTURES)))
    assert np.array_equal(result.part.features, features.astype(np.float32))
    assert result.images == 0
    assert extractor.backbone_key == "ready-features-7-float32"
    assert extractor.backbone_info()["width"] == 7
    assert FeatureCache(extractor._cache.storage).has(result.key)


def test_ready_features_that_are_not_finite_are_named(make: Callable[..., Extractor]) -> None:
    features = np.zeros((N, 7), dtype=np.float32)
    features[4, 2] = np.nan
    with pytest.raises(DataError, match="'sample-04' is NaN or infinite"):
        make(Ready(features)).extract(PartRequest(table(PICTURES)))


def test_features_too_large_for_float16_ask_for_float32(make: Callable[..., Extractor]) -> None:
    features = np.zeros((N, 7), dtype=np.float32)
    features[4, 2] = 1e6
    with pytest.raises(DataError, match=r"'sample-04' .*features\.dtype=float32"):
        make(Ready(features), dtype="float16").extract(PartRequest(table(PICTURES)))


def test_ready_features_of_another_width_are_refused(make: Callable[..., Extractor]) -> None:
    extractor = make(Ready(np.zeros((N, 7), dtype=np.float32)))
    extractor._reader = Ready(np.zeros((N, 9), dtype=np.float32))
    with pytest.raises(DataError, match=r"\(11, 9\), expected \[11, 7\]"):
        extractor.extract(PartRequest(table(PICTURES)))


def test_ready_features_cannot_be_augmented(make: Callable[..., Extractor]) -> None:
    with pytest.raises(DataError, match=r"features\.views=2 needs pictures"):
        make(Ready(np.zeros((N, 7), dtype=np.float32)), views=2)


def test_pictures_need_a_backbone(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match=r"set backbone\.name"):
        Extractor(
            reader=Pictures([]),  # type: ignore[arg-type]
            backbone=None,
            settings=FeatureSettings(),
            seed=0,
            storage=Storage.open(tmp_path),
        )


def test_a_request_arrives_as_it_was_sent() -> None:
    whole = pa.table({"id": ["a", "b", "c"], "row": [1, 2, 3]})
    sent = PartRequest(whole.slice(1, 1), 4)
    arrived = pickle.loads(pickle.dumps(sent))  # noqa: S301
    assert arrived == sent
    assert arrived.samples.schema == whole.schema
