"""The tables in a run's folder."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.results import (
    PREDICTION_SCHEMA,
    SCORED_COLUMNS,
    PredictionRows,
    accuracy_matrix,
    consolidate_predictions,
    count,
    method_names,
    prediction_keys,
    read_predictions,
    read_summary,
    write_chunk,
    write_summary,
)
from tests.orchestrator.streams import METHODS, rows_after, write_predictions
from workers.errors import CorruptionError, StorageError


def small_rows() -> PredictionRows:
    rows = PredictionRows()
    rows.add(
        method="lda",
        after_task=1,
        task=[0, 0, 1, 1, 1],
        sample=["a", "b", "c", "d", "é"],
        label=[0, 1, 2, 3, 3],
        predicted=[0, 2, 2, 3, 3],
        routed_task=[0, 1, 1, 1, 1],
        confidence=[0.9, 0.8, 0.7, 0.6, 0.5],
        log_prob_true=np.log([0.9, 0.1, 0.7, 0.6, 0.5]),
    )
    rows.add(
        method="simplecil",
        after_task=1,
        task=1,
        sample=pa.array(["c", "d"]),
        label=[2, 3],
        predicted=[3, 3],
    )
    return rows


def same(one: pa.Table, other: pa.Table) -> bool:
    """Equal in every cell, NaN being equal to itself."""
    return repr(one.to_pylist()) == repr(other.to_pylist())


def test_what_a_method_does_not_say_is_marked_as_missing():
    table = small_rows().table()
    assert table.schema.equals(PREDICTION_SCHEMA)
    last = table.slice(6).to_pylist()[0]
    assert last["routed_task"] == -1
    assert last["task"] == 1
    assert math.isnan(last["confidence"])
    assert math.isnan(last["routing_confidence"])
    assert math.isnan(last["log_prob_true"])


def test_arrays_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"lda: .*\(2,\) for 3 samples"):
        PredictionRows().add(
            method="lda",
            after_task=0,
            task=0,
            sample=["a", "b", "c"],
            label=[0, 1],
            predicted=[0, 1, 1],
        )


@pytest.mark.parametrize(
    "sample",
    [["a", "é"], pa.array(["a", "é"]), pa.chunked_array([["a"], ["é"]], pa.large_string())],
)
def test_sample_ids_may_be_a_list_or_any_arrow_column_of_text(sample):
    rows = PredictionRows()
    rows.add(method="m", after_task=0, task=0, sample=sample, label=[0, 1], predicted=[0, 0])
    assert rows.table()["sample"].to_pylist() == ["a", "é"]


def test_a_chunk_reads_back_as_it_was_written(tmp_path):
    table = small_rows().table()
    path = write_chunk(tmp_path, 1, table)
    assert path == "predictions/after-00001.parquet"
    assert same(read_predictions(tmp_path), table)


def test_no_temporary_file_is_left(tmp_path):
    write_predictions(tmp_path, tasks=3)
    consolidate_predictions(tmp_path)
    names = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert names == ["predictions.parquet"]


def test_a_chunk_written_again_replaces_the_first(tmp_path):
    write_chunk(tmp_path, 1, rows_after(1, tasks=2, seed=1))
    write_chunk(tmp_path, 1, rows_after(1, tasks=2, seed=2))
    assert same(read_predictions(tmp_path), rows_after(1, tasks=2, seed=2).table())


def test_rows_of_another_task_are_refused(tmp_path):
    with pytest.raises(ValueError, match="another task"):
        write_chunk(tmp_path, 2, small_rows())


def test_joining_the_chunks_changes_no_row(tmp_path):
    write_predictions(tmp_path, tasks=3)
    before = read_predictions(tmp_path)
    consolidate_predictions(tmp_path)
    assert same(read_predictions(tmp_path), before)


def test_a_crash_between_joining_and_removing_chunks_doubles_nothing(tmp_path):
    write_predictions(tmp_path, tasks=3)
    before = read_predictions(tmp_path)
    chunk = (tmp_path / "predictions/after-00001.parquet").read_bytes()
    consolidate_predictions(tmp_path)
    (tmp_path / "predictions/after-00001.parquet").write_bytes(chunk)
    assert read_predictions(tmp_path).num_rows == before.num_rows


def test_a_run_that_goes_on_after_its_end_keeps_what_it_had(tmp_path):
    write_predictions(tmp_path, tasks=3, upto=2)
    consolidate_predictions(tmp_path)
    write_chunk(tmp_path, 2, rows_after(2, tasks=3))
    counts = count(read_predictions(tmp_path, SCORED_COLUMNS))
    assert np.array_equal(np.diag(counts["lda"].samples), [20, 20, 20])
    consolidate_predictions(tmp_path)
    assert np.array_equal(np.diag(count(read_predictions(tmp_path))["lda"].samples), [20, 20, 20])


def test_a_run_without_predictions_says_so(tmp_path):
    with pytest.raises(StorageError, match="holds no predictions"):
        read_predictions(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    write_predictions(tmp_path, tasks=2)
    path = tmp_path / "predictions/after-00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptionError, match=r"after-00001\.parquet"):
        read_predictions(tmp_path)


@pytest.mark.parametrize("joined", [False, True])
def test_a_changed_bit_never_passes_for_other_predictions(tmp_path, joined):
    write_predictions(tmp_path, tasks=1)
    if joined:
        consolidate_predictions(tmp_path)
    path = tmp_path / ("predictions.parquet" if joined else "predictions/after-00000.parquet")
    written, data = read_predictions(tmp_path), path.read_bytes()
    keys = prediction_keys(tmp_path)
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        try:
            read = read_predictions(tmp_path)
        except CorruptionError:
            assert prediction_keys(tmp_path) == {}
            continue
        assert same(read, written), at  # the checksum's own mark was hit
        assert prediction_keys(tmp_path) == keys


def test_predictions_without_a_checksum_are_read_as_before(tmp_path):
    write_predictions(tmp_path, tasks=1)
    written = read_predictions(tmp_path)
    pq.write_table(written, tmp_path / "predictions/after-00000.parquet")
    assert same(read_predictions(tmp_path), written)


def test_files_can_be_read_by_other_programs(tmp_path):
    write_predictions(tmp_path, tasks=2)
    consolidate_predictions(tmp_path)
    frame = pq.read_table(tmp_path / "predictions.parquet").to_pandas()
    assert set(frame["method"]) == set(METHODS)
    assert (frame["label"] == frame["predicted"]).mean() > 0.5


def test_the_accuracy_matrix_is_what_counting_by_hand_gives():
    matrix = accuracy_matrix(small_rows().table(), "lda")
    assert np.isnan(matrix[0]).all()
    assert matrix[1].tolist() == [0.5, 1.0]


def test_the_accuracy_matrix_has_nothing_above_the_diagonal(tmp_path):
    write_predictions(tmp_path, tasks=4)
    matrix = accuracy_matrix(read_predictions(tmp_path), "lda")
    assert np.array_equal(np.isnan(matrix), np.triu(np.ones((4, 4), dtype=bool), 1))


def test_counts_agree_with_a_plain_loop(tmp_path):
    write_predictions(tmp_path, tasks=3)
    table = read_predictions(tmp_path)
    counts = count(table)
    for method in METHODS:
        mine = [row for row in table.to_pylist() if row["method"] == method]
        for after in range(3):
            for on in range(3):
                cell = [r for r in mine if (r["after_task"], r["task"]) == (after, on)]
                assert counts[method].samples[after, on] == len(cell)
                right = sum(r["label"] == r["predicted"] for r in cell)
                assert counts[method].right[after, on] == right
                routed = [r for r in cell if r["routed_task"] >= 0]
                assert counts[method].routed[after, on] == len(routed)
                hits = sum(r["routed_task"] == on for r in routed)
                assert counts[method].routed_right[after, on] == hits


def test_methods_come_in_order_of_first_appearance(tmp_path):
    write_predictions(tmp_path, tasks=2)
    assert method_names(read_predictions(tmp_path)) == list(METHODS)


def test_a_summary_reads_back_and_has_no_nan(tmp_path):
    write_summary(tmp_path, {"name": "démo", "metrics": {"lda": {"nll": math.nan, "a": 0.5}}})
    assert read_summary(tmp_path) == {"name": "démo", "metrics": {"lda": {"nll": None, "a": 0.5}}}
    json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "[" * 100_000, '{"methods": -1}', '{"backbone_images": []}', '{"run": {}}'],
)
def test_a_damaged_summary_is_reported(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(CorruptionError, match=r"summary\.json"):
        read_summary(tmp_path)


def test_predictions_tell_what_they_were_made_from(tmp_path):
    assert prediction_keys(tmp_path) == {}
    write_chunk(tmp_path, 1, small_rows(), key="digest-a")
    assert prediction_keys(tmp_path) == {1: "digest-a"}


def test_joining_the_chunks_keeps_what_they_were_made_from(tmp_path):
    for after in range(3):
        write_chunk(tmp_path, after, rows_after(after, tasks=3), key=f"digest-{after}")
    consolidate_predictions(tmp_path)
    write_chunk(tmp_path, 1, rows_after(1, tasks=3), key="newer")
    assert prediction_keys(tmp_path) == {0: "digest-0", 1: "newer", 2: "digest-2"}
    consolidate_predictions(tmp_path)
    assert prediction_keys(tmp_path) == {0: "digest-0", 1: "newer", 2: "digest-2"}


def test_damaged_predictions_count_as_absent(tmp_path):
    write_chunk(tmp_path, 1, small_rows(), key="a")
    path = tmp_path / "predictions/after-00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert prediction_keys(tmp_path) == {}


def test_a_damaged_chunk_hides_what_was_joined_before_it_and_nothing_else(tmp_path):
    for after in range(3):
        write_chunk(tmp_path, after, rows_after(after, tasks=3), key=f"digest-{after}")
    consolidate_predictions(tmp_path)
    write_chunk(tmp_path, 1, rows_after(1, tasks=3), key="newer")
    path = tmp_path / "predictions/after-00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert prediction_keys(tmp_path) == {0: "digest-0", 2: "digest-2"}
