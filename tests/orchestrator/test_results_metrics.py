"""Every metric of a run follows from its stored predictions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.report.data import reliability
from orchestrator.results import (
    METRIC_SCHEMA,
    PredictionRows,
    count,
    forgetting_by_task,
    metric_table,
    metrics_from_predictions,
    read_metrics,
    read_predictions,
    rows_after,
    write_metrics,
)
from tests.orchestrator.streams import METHODS, write_predictions


def run_with(
    accuracies: list[list[float]], samples: list[int], method: str = "lda"
) -> PredictionRows:
    """Predictions of one method with a given accuracy matrix (lower triangle, row a step)."""
    rows = PredictionRows()
    for after, row in enumerate(accuracies):
        for on, share in enumerate(row):
            right = np.arange(samples[on]) < round(share * samples[on])
            rows.add(
                method=method,
                after_task=after,
                task=on,
                sample=[f"{on}-{i}" for i in range(samples[on])],
                label=np.full(samples[on], on),
                predicted=np.where(right, on, on + 1),
                routed_task=np.where(right, on, on + 1),
                confidence=np.full(samples[on], 0.5),
                log_prob_true=np.full(samples[on], np.log(0.5)),
            )
    return rows


def test_metrics_are_what_the_definitions_give_by_hand():
    rows = run_with([[0.8], [0.6, 0.9], [0.7, 0.5, 1.0]], [10, 10, 20])
    metrics = metrics_from_predictions(rows.table())["lda"]
    assert metrics["final_accuracy"] == pytest.approx((7 + 5 + 20) / 40)
    assert metrics["average_incremental_accuracy"] == pytest.approx((0.8 + 0.75 + 0.8) / 3)
    assert metrics["task_weighted_average_accuracy"] == pytest.approx((0.7 + 0.5 + 1.0) / 3)
    assert metrics["forgetting"] == pytest.approx((0.1 + 0.4) / 2)
    assert metrics["backward_transfer"] == pytest.approx((-0.1 - 0.4) / 2)
    assert metrics["routing_accuracy"] == pytest.approx(0.8)
    assert metrics["expected_calibration_error"] == pytest.approx(0.3)
    assert metrics["negative_log_likelihood"] == pytest.approx(np.log(2))
    assert "forward_transfer" not in metrics


def test_forgetting_of_each_task_averages_to_forgetting():
    rows = run_with([[0.8], [0.6, 0.9], [0.7, 0.5, 1.0]], [10, 10, 20]).table()
    by_task = forgetting_by_task(count(rows)["lda"])
    assert by_task[:2].tolist() == pytest.approx([0.1, 0.4])
    assert np.isnan(by_task[2])
    assert metrics_from_predictions(rows)["lda"]["forgetting"] == pytest.approx(by_task[:2].mean())


def test_one_task_has_no_forgetting_and_no_transfer():
    metrics = metrics_from_predictions(run_with([[0.8]], [10]).table())["lda"]
    assert metrics["final_accuracy"] == pytest.approx(0.8)
    assert not {"forgetting", "backward_transfer"} & set(metrics)


def test_a_bound_scored_once_at_the_end_has_final_numbers_only(tmp_path):
    write_predictions(tmp_path, tasks=3)
    metrics = metrics_from_predictions(read_predictions(tmp_path))["joint_linear"]
    assert {"final_accuracy", "task_weighted_average_accuracy"} <= set(metrics)
    assert not {"average_incremental_accuracy", "forgetting", "routing_accuracy"} & set(metrics)


def test_a_method_not_scored_after_the_last_task_has_no_final_accuracy(tmp_path):
    write_predictions(tmp_path, tasks=3)
    table = read_predictions(tmp_path)
    early = (table["method"].to_pandas() != "lda") | (table["after_task"].to_pandas() < 2)
    metrics = metrics_from_predictions(table.filter(early.to_numpy()))
    assert metrics["lda"] == {}
    assert "final_accuracy" in metrics["entropy"]


def test_the_gap_is_to_the_better_joint_bound(tmp_path):
    write_predictions(tmp_path, tasks=3)
    metrics = metrics_from_predictions(read_predictions(tmp_path))
    joint, lda = metrics["joint_linear"], metrics["lda"]
    assert lda["gap_to_joint"] == joint["final_accuracy"] - lda["final_accuracy"]
    assert "gap_to_joint" not in joint


def test_a_bound_scored_after_every_task_gives_a_gap_after_every_task():
    rows = [("lda", [[0.8], [0.6, 0.8]]), ("joint_linear", [[0.9], [0.8, 0.8]])]
    tables = [run_with(accuracies, [10, 10], method=method).table() for method, accuracies in rows]
    table = pa.concat_tables(tables).unify_dictionaries()
    metrics = metrics_from_predictions(table)
    assert metrics["joint_linear"]["average_incremental_accuracy"] == pytest.approx(0.85)
    stored = metric_table(table).to_pylist()
    gaps = {
        (r["method"], r["after_task"]): r["value"] for r in stored if r["metric"] == "gap_to_joint"
    }
    assert gaps == {("lda", 0): pytest.approx(0.1), ("lda", 1): pytest.approx(0.1)}
    assert len([r for r in stored if r["metric"] == "gap_to_joint"]) == 2


def test_asking_for_some_methods_changes_none_of_their_numbers(tmp_path):
    write_predictions(tmp_path, tasks=3)
    table = read_predictions(tmp_path)
    some = metrics_from_predictions(table, ["lda", "oracle"])
    everything = metrics_from_predictions(table)
    assert some == {name: everything[name] for name in ("lda", "oracle")}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000))
def test_no_metric_depends_on_the_order_of_the_rows(seed, shared_predictions):
    table = shared_predictions
    shuffled = table.take(np.random.default_rng(seed).permutation(table.num_rows))
    one, other = metrics_from_predictions(table), metrics_from_predictions(shuffled)
    assert set(one) == set(other)
    for method in one:
        assert one[method] == pytest.approx(other[method], abs=1e-12)


@pytest.fixture(scope="module")
def shared_predictions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_predictions(folder, tasks=3, per_task=7)
    return read_predictions(folder)


def test_the_reliability_diagram_shows_the_expected_calibration_error(tmp_path):
    write_predictions(tmp_path, tasks=3, per_task=50)
    table = read_predictions(tmp_path)
    metrics = metrics_from_predictions(table)
    for method in METHODS:
        points = reliability(rows_after(table, method))
        gap = np.abs(points.accuracy - points.confidence)
        error = (gap * points.samples).sum() / points.samples.sum()
        assert error == pytest.approx(metrics[method]["expected_calibration_error"], abs=1e-9)


@pytest.mark.parametrize(("per_task", "bins"), [(1, 2), (10, 3), (30, 6), (80, 15)])
def test_the_reliability_diagram_of_few_samples_has_few_bins(tmp_path, per_task, bins):
    write_predictions(tmp_path, tasks=2, per_task=per_task)
    points = reliability(rows_after(read_predictions(tmp_path), "lda"))
    assert len(points.samples) == bins
    assert points.samples.sum() == 2 * per_task


def test_the_metric_table_holds_the_same_numbers(tmp_path):
    write_predictions(tmp_path, tasks=3)
    table = read_predictions(tmp_path)
    write_metrics(tmp_path, metric_table(table))
    stored = read_metrics(tmp_path)
    assert stored.schema.equals(METRIC_SCHEMA)
    rows = {
        (r["method"], r["after_task"], r["on_task"], r["metric"]): r["value"]
        for r in stored.to_pylist()
    }
    counts = count(table)
    assert rows["lda", 1, -1, "accuracy"] == counts["lda"].seen_accuracy[1]
    assert rows["lda", 2, 1, "accuracy"] == counts["lda"].accuracy[2, 1]
    assert ("lda", 0, 2, "accuracy") not in rows
    for method, metrics in metrics_from_predictions(table).items():
        for name, value in metrics.items():
            assert rows[method, 2, -1, name] == value


def test_a_run_without_rows_has_no_metrics():
    empty = PredictionRows().table()
    assert metrics_from_predictions(empty) == {}
    assert metric_table(empty).num_rows == 0
