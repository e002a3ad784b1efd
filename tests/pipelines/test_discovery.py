"""What `luca init` sees at a path."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.discovery import discover
from tests.pipelines.sources.data import feature_table, png, write_features, write_images
from workers.errors import DataError


def counts(path: Path) -> tuple[int, dict[str, int]]:
    """Number of classes, and samples by split."""
    found = discover(str(path)).listing
    splits = found.samples["split"].to_pylist()
    return len(found.classes), {split: splits.count(split) for split in sorted(set(splits))}


def test_class_folders(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat": 5, "dog": 5})
    found = discover(str(tmp_path))
    assert found.source == {"kind": "image_folder", "path": str(tmp_path)}
    assert not found.own_split
    assert counts(tmp_path) == (2, {"test": 2, "train": 8})


def test_train_and_test_folders(tmp_path: Path) -> None:
    write_images(tmp_path, {"train/cat": 4, "train/dog": 4, "test/cat": 2, "test/dog": 2})
    found = discover(str(tmp_path))
    assert found.own_split
    assert found.domains == ()
    assert counts(tmp_path) == (2, {"test": 4, "train": 8})


def test_folders_that_repeat_their_classes_are_domains(tmp_path: Path) -> None:
    write_images(tmp_path, {"photo/cat": 3, "photo/dog": 3, "sketch/cat": 3, "sketch/dog": 3})
    found = discover(str(tmp_path))
    assert found.source["domain_folders"] is True
    assert found.domains == ("photo", "sketch")
    assert found.listing.classes == ("cat", "dog")


def test_folders_inside_class_folders_belong_to_the_class(tmp_path: Path) -> None:
    write_images(tmp_path, {"cat/indoor": 3, "cat/outdoor": 3, "dog/small": 3, "dog/large": 3})
    found = discover(str(tmp_path))
    assert found.source["merge_subfolders"] is True
    assert found.listing.classes == ("cat", "dog")
    assert "parts of their class" in found.remarks[0]


def test_nothing_of_an_image_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path, {"cat": 2, "dog": 2})

    def refuse(*_: object) -> bytes:
        raise AssertionError("a look must not read images")

    monkeypatch.setattr("pipelines.sources.files.read_bytes", refuse)
    monkeypatch.setattr("pipelines.discovery.read_bytes", refuse)
    assert counts(tmp_path)[0] == 2


def test_loose_images_with_a_list_beside_them(tmp_path: Path) -> None:
    write_images(tmp_path, {"images": 4})
    rows = "".join(f"images/{at:03d}.png,{'ab'[at % 2]}\n" for at in range(4))
    (tmp_path / "labels.csv").write_text("filename,species\n" + rows)
    (tmp_path / "loose.png").write_bytes(png(9))
    found = discover(str(tmp_path))
    assert found.source == {
        "kind": "manifest",
        "path": str(tmp_path / "labels.csv"),
        "path_column": "filename",
        "label_column": "species",
    }
    assert found.listing.classes == ("a", "b")


def test_a_list_with_a_byte_order_mark_splits_and_domains(tmp_path: Path) -> None:
    text = "path,label,split,domain\nx.png,007,train,p\ny.png,007,test,q\nz.png,8,train,p\n"
    (tmp_path / "list.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    found = discover(str(tmp_path / "list.csv"))
    assert found.source == {"kind": "manifest", "path": str(tmp_path / "list.csv")}
    assert found.own_split
    assert found.domains == ("p", "q")
    assert found.listing.classes == ("007", "8")


def test_ready_features_with_their_width(tmp_path: Path) -> None:
    write_features(tmp_path / "f.parquet", ["a", "b", "c"])
    found = discover(str(tmp_path / "f.parquet"))
    assert found.source == {"kind": "features", "path": str(tmp_path / "f.parquet")}
    assert found.listing.feature_width == 6
    assert found.own_split


def test_features_and_labels_under_other_names(tmp_path: Path) -> None:
    table = feature_table([0, 1, 0, 1]).rename_columns(["embedding", "target"])
    table = table.set_column(0, "embedding", table["embedding"].cast(pa.list_(pa.float32())))
    pq.write_table(table, tmp_path / "f.parquet")
    found = discover(str(tmp_path / "f.parquet"))
    assert found.source["feature_column"] == "embedding"
    assert found.source["label_column"] == "target"
    assert found.listing.feature_width == 6


def test_a_folder_of_image_tables_named_by_split(tmp_path: Path) -> None:
    for split, count in (("train", 6), ("test", 2)):
        images = [{"bytes": png(at), "path": f"{at}.png"} for at in range(count)]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = pa.table(
            {"image": pa.array(images, kind), "label": [at % 2 for at in range(count)]}
        )
        pq.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    found = discover(str(tmp_path))
    assert found.source == {"kind": "parquet", "path": str(tmp_path)}
    assert found.own_split
    assert counts(tmp_path) == (2, {"test": 2, "train": 6})


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("notes.docx", b"x", "is no kind of file"),
        ("a.csv", b"x,y\n1,2\n", "no column of image paths"),
        ("a.csv", b"path,y0\n1,2\n", "no column of labels"),
        ("a.csv", b"path,label\n\xff\xfe,2\n", "UTF-8"),
        ("a.csv", "path,label\na,b\n".encode("utf-16"), "UTF-16: save it as UTF-8"),
        ("a.csv", b"path,path,label\na,b,c\n", "2 columns are named 'path'"),
        ("a.parquet", b"junk", "cannot be read as Parquet"),
        ("a.tar.gz", b"junk", "cannot be read as a tar archive"),
    ],
)
def test_files_that_cannot_be_understood_are_refused(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        discover(str(tmp_path / name))


def test_folders_that_cannot_be_understood_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected .*<class>/<image>"):
        discover(str(tmp_path))
    with pytest.raises(DataError, match="no file or folder"):
        discover(str(tmp_path / "nowhere"))
    write_images(tmp_path, {"": 2})
    with pytest.raises(DataError, match="lies in no class folder"):
        discover(str(tmp_path))
    table = pa.table({"label": ["a"], "number": [1]})
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "t.parquet")
    with pytest.raises(DataError, match=r"no column of features .* it has label, number"):
        discover(str(tmp_path / "t"))


def test_a_class_that_is_only_tested_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, {"train/cat": 2, "test/cat": 1, "test/dog": 1})
    with pytest.raises(DataError, match="in test only"):
        discover(str(tmp_path))
