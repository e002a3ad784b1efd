from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from pipelines.sources import columns
from tests.pipelines.sources.data import groups, listing, png, source, travelled
from workers.errors import DataError

HUGGING_FACE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def hugging_face_table(labels: list[object], *, first: int = 0) -> pa.Table:
    images = [{"bytes": png(first + at), "path": f"{at}.png"} for at in range(len(labels))]
    return pa.table({"image": pa.array(images, HUGGING_FACE), "label": pa.array(labels)})


@pytest.mark.parametrize("budget", [0, columns.COLUMN_BUDGET])
@pytest.mark.parametrize("layout", ["struct", "binary", "large_binary", "feather"])
def test_images_come_back_as_they_were_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, budget: int
) -> None:
    monkeypatch.setattr(columns, "COLUMN_BUDGET", budget)
    count = 20
    table = hugging_face_table([f"c{at % 3}" for at in range(count)])
    if layout.endswith("binary"):
        kind = pa.binary() if layout == "binary" else pa.large_binary()
        table = table.set_column(0, "img", pa.array([png(at) for at in range(count)], kind))
    path = tmp_path / "images.parquet"
    if layout == "feather":
        feather.write_feather(table, path)
    else:
        pq.write_table(table, path, row_group_size=6)
    images = source(kind="parquet", path=path)
    rows = [19, 2, 2, 7]
    reader = travelled(images.reader())
    assert reader.read(images.samples().take(rows)) == [png(row) for row in rows]


def test_class_label_names_come_from_hugging_face_metadata_in_their_order(tmp_path: Path) -> None:
    names = ["zebra", "ant", "unused"]
    info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    table = hugging_face_table([1, 0, 1]).replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, tmp_path / "train.parquet")
    pq.write_table(
        hugging_face_table([0], first=9).replace_schema_metadata({"huggingface": json.dumps(info)}),
        tmp_path / "test.parquet",
    )
    found = listing(kind="parquet", path=tmp_path)
    assert found.classes == ("zebra", "ant")
    assert groups(found) == {
        ("train", "", "ant"): 2,
        ("train", "", "zebra"): 1,
        ("test", "", "zebra"): 1,
    }


def test_a_row_group_is_read_once_a_call_and_others_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "COLUMN_BUDGET", 0)
    pq.write_table(hugging_face_table(["a"] * 20), tmp_path / "f.parquet", row_group_size=5)
    images = source(kind="parquet", path=tmp_path / "f.parquet")
    reader, samples = images.reader(), images.samples()
    read: list[int] = []
    original = pq.ParquetFile.iter_batches

    def counted(
        self: pq.ParquetFile, *args: object, row_groups: list[int], **more: object
    ) -> object:
        read.extend(row_groups)
        return original(self, *args, row_groups=row_groups, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    reader.read(samples.take([17, 1, 16, 0, 15]))
    assert read == [0, 3]


def test_a_second_listing_decodes_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(hugging_face_table(["a", "b"]), tmp_path / "f.parquet")
    settings = {"kind": "parquet", "path": tmp_path / "f.parquet", "cache_dir": tmp_path / "index"}
    first = source(**settings).samples()
    monkeypatch.delattr(columns.TableFile, "chunks")
    assert source(**settings).samples().equals(first)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            pa.array([{"bytes": png(0), "path": ""}, None], HUGGING_FACE),
            "column 'image' is null in row 1",
        ),
        (
            pa.array([{"bytes": png(0), "path": ""}, {"bytes": None, "path": "x"}], HUGGING_FACE),
            "column 'image.bytes' is null in row 1",
        ),
        (pa.array([png(0), b""]), "empty image .* in row 1"),
        (pa.array(["a.png", "b.png"]), "which column holds the images.*none can"),
    ],
)
def test_columns_that_cannot_be_images_are_refused(
    tmp_path: Path, images: pa.Array, message: str
) -> None:
    pq.write_table(pa.table({"image": images, "label": ["a", "a"]}), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=message):
        listing(kind="parquet", path=tmp_path / "f.parquet")


def test_several_image_columns_need_a_choice(tmp_path: Path) -> None:
    table = hugging_face_table(["a", "a"]).append_column("mask", pa.array([png(7), png(8)]))
    pq.write_table(table, tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"image, mask can; set source\.image_column"):
        listing(kind="parquet", path=tmp_path / "f.parquet")
    images = source(kind="parquet", path=tmp_path / "f.parquet", image_column="mask")
    assert images.reader().read(images.samples()) == [png(7), png(8)]
    with pytest.raises(DataError, match=r"column 'label' is string; encoded images are binary"):
        listing(kind="parquet", path=tmp_path / "f.parquet", image_column="label")
