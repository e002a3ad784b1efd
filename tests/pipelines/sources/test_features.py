from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from pipelines.sources import columns
from tests.pipelines.sources.data import (
    feature_table,
    groups,
    listing,
    source,
    travelled,
    write_features,
)
from workers.errors import DataError, SettingsError

LABELS = ["b", "a", "b", "a", "b", "a"]
SPLITS = ["train", "train", "train", "train", "test", "test"]


def values_of(table: pa.Table) -> np.ndarray:
    flat = table["feature"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(table.num_rows, -1)


def write_as(table: pa.Table, path: Path, kind: str) -> Path:
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=2)
    elif kind == "feather":
        feather.write_feather(table.combine_chunks(), path, compression="lz4")
    else:
        new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return path


@pytest.mark.parametrize("kind", ["parquet", "feather", "file", "stream"])
def test_width_type_and_values_come_from_the_file(tmp_path: Path, kind: str) -> None:
    table = feature_table(LABELS, SPLITS)
    path = write_as(table, tmp_path / "features.bin", kind)
    features = source(kind="features", path=path)
    found = features.listing()
    assert found.feature_width == 6
    assert found.classes == ("a", "b")
    assert groups(found) == {
        ("train", "", "a"): 2,
        ("train", "", "b"): 2,
        ("test", "", "a"): 1,
        ("test", "", "b"): 1,
    }
    chosen = found.samples.take([5, 0, 3, 3])
    reader = travelled(features.reader())
    read = reader.read(chosen)
    assert reader.kind == "features"
    assert read.dtype == np.float16
    np.testing.assert_array_equal(read, values_of(table)[[5, 0, 3, 3]])


def test_a_column_over_the_budget_is_streamed_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "COLUMN_BUDGET", 0)
    table = feature_table([f"c{at % 7}" for at in range(50)], width=3)
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=8)
    features = source(kind="features", path=tmp_path / "f.parquet")
    rows = [49, 3, 17, 3]
    read = features.reader().read(features.samples().take(rows))
    np.testing.assert_array_equal(read, values_of(table)[rows])


def test_float32_and_plain_lists_are_read_and_float64_is_narrowed(tmp_path: Path) -> None:
    for kind in (pa.float32(), pa.float64()):
        table = pa.table(
            {"feature": pa.array([[1.5, 2.5], [3.5, 4.5]], pa.list_(kind)), "label": ["a", "a"]}
        )
        pq.write_table(table, tmp_path / "f.parquet")
        features = source(kind="features", path=tmp_path / "f.parquet")
        read = features.reader().read(features.samples())
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, [[1.5, 2.5], [3.5, 4.5]])


def test_whole_number_labels_are_ordered_by_value(tmp_path: Path) -> None:
    path = write_features(tmp_path / "f.parquet", [10, 9, 100])
    assert listing(kind="features", path=path).classes == ("9", "10", "100")


def test_names_can_be_given_to_whole_number_labels(tmp_path: Path) -> None:
    path = write_features(tmp_path / "f.parquet", [0, 1])
    names = {"label_names": ["zebra", "ant"]}
    assert listing(kind="features", path=path, **names).classes == ("zebra", "ant")
    with pytest.raises(DataError, match="label 1 in row 1 has no name"):
        listing(kind="features", path=path, label_names=["zebra"])


def test_domains_and_ids_are_read_where_the_file_has_them(tmp_path: Path) -> None:
    table = feature_table(["a", "a"], domain=["x", "y"], id=["first", "second"])
    pq.write_table(table, tmp_path / "f.parquet")
    found = listing(kind="features", path=tmp_path / "f.parquet").samples
    assert found["id"].to_pylist() == ["first", "second"]
    assert found["domain"].to_pylist() == ["x", "y"]


def test_train_and_test_files_split_by_file(tmp_path: Path) -> None:
    for name, labels in (("one", ["a", "b"]), ("two", ["a", "a"])):
        pq.write_table(feature_table(labels), tmp_path / f"{name}.parquet")
    found = listing(
        kind="features", path=tmp_path / "one.parquet", test_path=str(tmp_path / "two.parquet")
    )
    assert groups(found) == {("train", "", "a"): 1, ("train", "", "b"): 1, ("test", "", "a"): 2}
    assert found.samples["id"].to_pylist()[0] == "one.parquet/00000000"


def test_file_names_of_a_folder_may_say_the_split(tmp_path: Path) -> None:
    pq.write_table(feature_table(["a", "b"]), tmp_path / "train-00000-of-00002.parquet")
    pq.write_table(feature_table(["b", "a", "a"]), tmp_path / "train-00001-of-00002.parquet")
    pq.write_table(feature_table(["a"]), tmp_path / "test-00000-of-00001.parquet")
    found = listing(kind="features", path=tmp_path)
    assert groups(found) == {("train", "", "a"): 3, ("train", "", "b"): 2, ("test", "", "a"): 1}


def test_equal_content_has_an_equal_digest_whatever_file_it_stands_in(tmp_path: Path) -> None:
    table = feature_table(LABELS, SPLITS)
    pq.write_table(table, tmp_path / "f.parquet")
    feather.write_feather(table.combine_chunks(), tmp_path / "f.feather")
    one, two = (
        listing(kind="features", path=tmp_path / name).samples
        for name in ("f.parquet", "f.feather")
    )
    assert one["content"].equals(two["content"])


def test_a_second_listing_decodes_no_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_features(tmp_path / "f.parquet", ["a", "b"])
    settings = {"kind": "features", "path": path, "cache_dir": tmp_path / "index"}
    first = source(**settings).listing()
    monkeypatch.delattr(columns.TableFile, "chunks")
    second = source(**settings).listing()
    assert second.samples.equals(first.samples)
    assert second.feature_width == 6


def test_a_changed_bit_of_the_index_never_passes_for_other_data(tmp_path: Path) -> None:
    path = write_features(tmp_path / "f.parquet", ["a", "b"])
    settings = {"kind": "features", "path": path, "cache_dir": tmp_path / "index"}
    first = source(**settings).samples()
    (index,) = (tmp_path / "index").iterdir()
    data = index.read_bytes()
    for at in range(0, len(data), 7):
        index.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        assert source(**settings).samples().equals(first), at


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_file_and_row(
    tmp_path: Path, value: float
) -> None:
    numbers = np.ones((4, 2), dtype=np.float32)
    numbers[2, 1] = value
    column = pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), 2)
    pq.write_table(pa.table({"feature": column, "label": list("aabb")}), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=rf"f\.parquet': column 'feature' holds {value} in row 2"):
        listing(kind="features", path=tmp_path / "f.parquet")


def test_features_that_changed_after_listing_are_refused(tmp_path: Path) -> None:
    path = write_features(tmp_path / "f.parquet", ["a", "b"])
    features = source(kind="features", path=path)
    samples = features.samples()
    pq.write_table(feature_table(["a"] * 30), path)
    with pytest.raises(DataError, match=r"f\.parquet' row 0 has changed"):
        features.reader().read(samples)
    pq.write_table(feature_table(["a"]), path)
    with pytest.raises(DataError, match="fewer rows than when it was listed"):
        features.reader().read(samples)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"label": ["a"]}), "no column 'feature'; it has label"),
        (feature_table(["a"]).drop_columns(["label"]), "no column 'label'; it has feature"),
        (feature_table(["a", None, "b", None]), "column 'label' is null in rows 1, 3"),
        (feature_table([1.5]), "labels are text or whole numbers"),
        (feature_table(["a"], ["tset"]), "unknown split 'tset'"),
        (feature_table(["a", ""]), "empty label"),
        (feature_table(["a", "a"], id=["x", "x"]), "id 'x' occurs more than once"),
        (feature_table(["a", "b"], ["train", "test"]), "class is in test only.*'b'"),
        (feature_table([]), "no rows"),
        (pa.table({"feature": ["x"], "label": ["a"]}), "column 'feature' is string; features are"),
        (pa.table({"feature": [[1], [2]], "label": ["a", "a"]}), "features are fixed_size_list"),
        (pa.table({"feature": [[1.0], [2.0, 3.0]], "label": ["a", "a"]}), "2 values in row 1"),
        (pa.table({"feature": [[1.0], None], "label": ["a", "a"]}), "is null in row 1"),
        (pa.table({"feature": [[1.0], [None]], "label": ["a", "a"]}), "a null in row 1"),
        (pa.table({"feature": pa.array([[]], pa.list_(pa.float32())), "label": ["a"]}), "width 0"),
    ],
)
def test_tables_that_cannot_be_features_are_refused(
    tmp_path: Path, table: pa.Table, message: str
) -> None:
    pq.write_table(table, tmp_path / "f.parquet")
    with pytest.raises(DataError, match=message):
        listing(kind="features", path=tmp_path / "f.parquet")


def not_utf_8(values: list[bytes]) -> pa.Array:
    """Text as a careless program writes it: Arrow does not check what a buffer holds."""
    return pa.array(values, pa.binary()).view(pa.string())


@pytest.mark.parametrize("column", ["label", "split", "domain", "id"])
def test_text_that_is_not_utf_8_is_refused(tmp_path: Path, column: str) -> None:
    table = feature_table(["a", "a"]).to_pydict() | {"label": ["a", "a"]}
    columns = {name: pa.array(values) for name, values in table.items()}
    columns[column] = not_utf_8([b"K\xe4fer", b"b"])
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    with pytest.raises(DataError, match="not UTF-8"):
        listing(kind="features", path=tmp_path / "f.parquet")


def test_a_column_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    table = feature_table(["a", "a"])
    table = table.append_column("label", table["label"])
    pa.ipc.new_file(str(tmp_path / "f.arrow"), table.schema).close()
    pq.write_table(table, tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"2 columns are named 'label'.*source\.label_column"):
        listing(kind="features", path=tmp_path / "f.parquet")


def test_a_class_name_with_control_characters_is_refused_before_anything_is_learned(
    tmp_path: Path,
) -> None:
    names = ["a", "b\nc"]
    pq.write_table(feature_table(names), tmp_path / "f.parquet")
    with pytest.raises(
        DataError, match=r"sample '00000001' has the label 'b\\nc'.*rename the label"
    ):
        listing(kind="features", path=tmp_path / "f.parquet")
    pq.write_table(
        feature_table(["a", "a"], domain=pa.array(["d", "\x1b"])), tmp_path / "f.parquet"
    )
    with pytest.raises(DataError, match=r"has the domain.*rename the domain"):
        listing(kind="features", path=tmp_path / "f.parquet")


def test_files_of_different_widths_are_refused(tmp_path: Path) -> None:
    pq.write_table(feature_table(["a", "a"], width=3), tmp_path / "a.parquet")
    pq.write_table(feature_table(["a", "a"], width=4), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"a\.parquet' holds features of 3 float16.*of 4 float16"):
        listing(kind="features", path=tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1 and then nothing that is Parquet", b"a,b\n1,2\n"]
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"f\.parquet' (cannot be read as|is empty)"):
        listing(kind="features", path=tmp_path / "f.parquet")


def test_a_split_column_must_agree_with_test_files_and_overrules_file_names(tmp_path: Path) -> None:
    path = write_features(tmp_path / "train.parquet", ["a"])
    assert groups(listing(kind="features", path=path)) == {
        ("train", "", "a"): 4,
        ("test", "", "a"): 2,
    }
    other = write_features(tmp_path / "other.parquet", ["a"])
    with pytest.raises(
        SettingsError, match=r"train\.parquet' train samples, but its column 'split' says 'test'"
    ):
        listing(kind="features", path=path, test_path=str(other))


def test_a_folder_without_tables_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.parquet.* file in this folder"):
        listing(kind="features", path=tmp_path)
    with pytest.raises(DataError, match=r"no file or folder .*nearest folder that exists"):
        listing(kind="features", path=tmp_path / "missing.parquet")
