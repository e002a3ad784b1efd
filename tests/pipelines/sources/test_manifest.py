from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.sources import files as files_module
from tests.pipelines.sources.data import groups, listing, png, source, write_images
from workers.errors import DataError

HEADER = "path,label,split,domain\n"
LINES = "i/000.png,cat,train,x\ni/001.png,cat,test,x\ni/002.png,NA,train,y\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path, {"i": 3})


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_csv_lists_images_with_or_without_a_byte_order_mark(
    folder: Path, mark: str, newline: str
) -> None:
    (folder / "list.csv").write_text(mark + (HEADER + LINES).replace("\n", newline), newline="")
    found = listing(kind="manifest", path=folder / "list.csv")
    assert groups(found) == {
        ("train", "x", "cat"): 1,
        ("test", "x", "cat"): 1,
        ("train", "y", "NA"): 1,
    }


def test_a_table_file_lists_images_too(folder: Path) -> None:
    table = pa.table({"path": ["i/000.png", "i/001.png"], "label": [10, 9], "split": ["train"] * 2})
    pq.write_table(table, folder / "list.parquet")
    assert listing(kind="manifest", path=folder / "list.parquet").classes == ("9", "10")


def test_labels_that_are_whole_numbers_are_ordered_by_value_and_others_by_name(
    folder: Path,
) -> None:
    (folder / "n.csv").write_text("path,label\ni/000.png,10\ni/001.png,9\n")
    (folder / "s.csv").write_text("path,label\ni/000.png,010\ni/001.png,09\ni/002.png,1\n")
    assert listing(kind="manifest", path=folder / "n.csv").classes == ("9", "10")
    assert listing(kind="manifest", path=folder / "s.csv").classes == ("010", "09", "1")


def test_quoted_names_may_hold_commas_and_slashes(folder: Path) -> None:
    (folder / "list.csv").write_text('path,label\ni/000.png,"../a, b"\n')
    assert listing(kind="manifest", path=folder / "list.csv").classes == ("../a, b",)


def test_paths_may_be_absolute_or_relative_to_a_root(folder: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "list.tsv").write_text(f"path\tlabel\n000.png\ta\n{folder}/i/001.png\ta\n")
    images = source(kind="manifest", path=lists / "list.tsv", root=folder / "i")
    read = images.reader().read(images.samples())
    by_id = dict(zip(images.samples()["id"].to_pylist(), read, strict=True))
    assert by_id == {"000.png": png(0), f"{folder}/i/001.png": png(1)}


def test_a_second_listing_reads_no_image(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "list.csv").write_text(HEADER + LINES)
    settings = {"kind": "manifest", "path": folder / "list.csv", "cache_dir": folder / "index"}
    first = source(**settings).samples()
    monkeypatch.setattr(files_module, "file_digests", None)
    assert source(**settings).samples().equals(first)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\ni/000.png,a\n", r"no column 'path'; it has file, label \(source.path_column"),
        (
            "path,label\ni/000.png,a\ni/nope.png,a\n",
            "row 1 .*cannot read '.*nope.png': No such file",
        ),
        ("path,label\n,a\n", "path in row 0 is empty"),
        ("path,label\ni/000.png,\n", "empty label"),
        ("path,label\ni/000.png,a\ni/000.png,b\n", "id 'i/000.png' occurs more than once"),
        ("path,label\ni/000.png,a,b\n", "cannot be read as CSV"),
        ("path,label\n", "no samples found"),
        ("path,path,label\ni/000.png,x,a\n", "2 columns are named 'path'.*source.path_column"),
        ("path,label\ni/\0.png,a\n", "row 0 .*cannot read .*null byte"),
        ("path,label\ni/000.png,a\x1b[2J\n", r"label 'a\\x1b\[2J', which is not a line of text"),
        ("path,label\ni/000.png,'a\x7f'\n", "rename the label"),
        ("path,label\n.,a\n", "is a folder where a file is expected"),
        ("path,label\n/dev/zero,a\n", "is a pipe, socket or device"),
        ("", "cannot be read as CSV"),
    ],
)
def test_lists_that_cannot_be_followed_are_refused(folder: Path, text: str, message: str) -> None:
    (folder / "list.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        listing(kind="manifest", path=folder / "list.csv")


def test_text_in_another_encoding_is_refused(folder: Path) -> None:
    (folder / "list.csv").write_bytes("path,label\ni/000.png,Käfer\n".encode("latin1"))
    with pytest.raises(DataError, match="UTF-8"):
        listing(kind="manifest", path=folder / "list.csv")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le"])
def test_a_list_in_utf_16_is_refused(folder: Path, encoding: str) -> None:
    (folder / "list.csv").write_bytes("path,label\ni/000.png,K\u00e4fer\n".encode(encoding))
    with pytest.raises(DataError, match=r"UTF-8|no column 'path'"):
        listing(kind="manifest", path=folder / "list.csv")


def test_a_heading_that_is_no_text_is_refused(folder: Path) -> None:
    (folder / "list.csv").write_bytes(b"p\xe4th,label\ni/000.png,a\n")
    with pytest.raises(DataError, match="UTF-8"):
        listing(kind="manifest", path=folder / "list.csv")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "manifest", "path": ""}, "is a folder; a manifest is a CSV"),
        ({"kind": "manifest", "path": "nope.csv"}, "no manifest file .*which holds 'i'"),
        ({"kind": "image_folder", "path": "list.csv"}, "source.kind: manifest"),
    ],
)
def test_a_list_and_a_folder_are_not_confused(
    folder: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        listing(**{**settings, "path": folder / settings["path"]})
