"""What predictions are asked for: images and tables, found below paths and told apart."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from pipelines.unlabelled import FeatureBatch, ImageFiles, PictureBatch, TableRows, find_inputs
from tests.pipelines.sources.data import png, write_images
from workers.errors import DataError


def names(paths: list[Path] | list[str], size: int = 2) -> list[str]:
    inputs, _ = find_inputs([str(path) for path in paths])
    return [name for item in inputs for batch in item.batches(size) for name in batch.ids]


def vectors(count: int, width: int = 3) -> pa.FixedSizeListArray:
    flat = np.arange(count * width, dtype=np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), width)


def test_folders_are_searched_to_the_bottom_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_images(tmp_path, {"b": 2, "a/deep/down": 1})
    (tmp_path / "top.JPG").write_bytes(png(7))
    (tmp_path / ".hidden.png").write_bytes(png(8))
    found = names([tmp_path])
    assert [name.removeprefix(f"{tmp_path}/") for name in found] == [
        "a/deep/down/000.png",
        "b/000.png",
        "b/001.png",
        "top.JPG",
    ]


def test_names_are_those_that_were_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path, {"x": 1})
    monkeypatch.chdir(tmp_path)
    assert names(["x", "x/000.png", "./x/"]) == ["x/000.png", "x/000.png", "./x/000.png"]


def test_single_files_share_batches(tmp_path: Path) -> None:
    write_images(tmp_path, {"x": 3})
    inputs, _ = find_inputs([str(tmp_path / f"x/{at:03d}.png") for at in range(3)])
    (item,) = inputs
    (batch,) = item.batches(8)
    assert isinstance(batch, PictureBatch)
    assert [read() for read in batch.reads] == [png(0), png(1), png(2)]


def test_images_and_tables_of_one_folder_are_both_found(tmp_path: Path) -> None:
    write_images(tmp_path, {"x": 1})
    pq.write_table(pa.table({"feature": vectors(2)}), tmp_path / "f.parquet")
    (tmp_path / "readme.md").write_text("")
    inputs, notes = find_inputs([str(tmp_path)])
    assert [type(item) for item in inputs] == [ImageFiles, TableRows]
    assert [item.kind for item in inputs] == ["images", "features"]
    assert notes == [f"{tmp_path}: left out 1 file, neither image nor table"]


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_rows_come_in_order_whatever_the_file_and_the_batch(
    tmp_path: Path, suffix: str, size: int
) -> None:
    table = pa.table({"id": [f"r{at}" for at in range(5)], "feature": vectors(5)})
    path = tmp_path / f"f.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=3)
    else:
        feather.write_feather(table, path, chunksize=3)
    (item,), _ = find_inputs([str(path)])
    assert isinstance(item, TableRows)
    assert item.width == 3
    batches = list(item.batches(size))
    assert all(len(batch.ids) <= size for batch in batches)
    assert [name for batch in batches for name in batch.ids] == [f"r{at}" for at in range(5)]
    joined = np.concatenate([b.features for b in batches if isinstance(b, FeatureBatch)])
    np.testing.assert_array_equal(joined, np.arange(15, dtype=np.float32).reshape(5, 3))


def test_rows_without_ids_are_named_by_file_and_number(tmp_path: Path) -> None:
    pq.write_table(pa.table({"feature": vectors(5)}), tmp_path / "f.parquet", row_group_size=2)
    assert names([tmp_path / "f.parquet"], 1) == [f"{tmp_path}/f.parquet:{at}" for at in range(5)]


def test_the_features_of_a_table_go_before_its_images(tmp_path: Path) -> None:
    table = pa.table({"feature": vectors(1), "image": [png(1)]})
    pq.write_table(table, tmp_path / "both.parquet")
    (item,), _ = find_inputs([str(tmp_path)])
    assert item.kind == "features"
    (item,), _ = find_inputs([str(tmp_path)], image_column="image")
    assert item.kind == "images"


def test_files_on_other_file_systems_are_read(tmp_path: Path) -> None:
    write_images(tmp_path, {"x": 2})
    uri = f"file://{tmp_path}"
    (item,), _ = find_inputs([uri])
    (batch,) = item.batches(5)
    assert isinstance(batch, PictureBatch)
    assert [read() for read in batch.reads] == [png(0), png(1)]


def test_a_table_with_several_columns_of_images_asks_which(tmp_path: Path) -> None:
    pq.write_table(pa.table({"left": [png(1)], "right": [png(2)]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"2 columns hold images \(left, right\).*--image-column"):
        find_inputs([str(tmp_path)])
    (item,), _ = find_inputs([str(tmp_path)], image_column="right")
    assert isinstance(item, TableRows)
    assert item.column == "right"


@pytest.mark.parametrize("content", [b"", b"junk"])
def test_damaged_tables_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.parquet"):
        find_inputs([str(tmp_path)])


def test_null_images_are_refused_by_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [png(1), None]}), tmp_path / "t.parquet")
    (item,), _ = find_inputs([str(tmp_path)])
    with pytest.raises(DataError, match="null in row 1"):
        list(item.batches(5))


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    bad = os.fsencode(tmp_path) + b"/\xff.png"
    with open(bad, "wb") as file:
        file.write(png(1))
    for path in (str(tmp_path), os.fsdecode(bad)):
        with pytest.raises(DataError, match="not valid UTF-8"):
            find_inputs([path])
