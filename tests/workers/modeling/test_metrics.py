"""Metrics against cases worked out by hand from their definitions, and against a published implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.errors import DataError
from workers.modeling import metrics
from workers.modeling.metrics import AccuracyMatrix

NAN = np.nan
# Three tasks with 10, 30 and 60 test samples.
MATRIX = AccuracyMatrix(
    values=np.array([[0.9, NAN, NAN], [0.6, 0.8, NAN], [0.7, 0.5, 0.95]]),
    counts=np.array([10, 30, 60]),
)
ONE = AccuracyMatrix(values=np.array([[0.8]]), counts=np.array([5]))


def test_accuracy_after_each_task_weighs_tasks_by_their_samples():
    # (10*0.6 + 30*0.8)/40 = 0.75;  (10*0.7 + 30*0.5 + 60*0.95)/100 = 0.79
    np.testing.assert_allclose(metrics.accuracy_after_each_task(MATRIX), [0.9, 0.75, 0.79])


def test_average_incremental_accuracy_is_the_mean_over_steps():
    assert metrics.average_incremental_accuracy(MATRIX) == pytest.approx((0.9 + 0.75 + 0.79) / 3)


def test_final_accuracy_is_sample_weighted_and_average_accuracy_is_task_weighted():
    assert metrics.final_accuracy(MATRIX) == pytest.approx(0.79)
    assert metrics.task_weighted_average_accuracy(MATRIX) == pytest.approx((0.7 + 0.5 + 0.95) / 3)


def test_forgetting_of_chaudhry_leaves_the_last_row_out_of_the_maximum():
    # task 0: max(0.9, 0.6) - 0.7;  task 1: 0.8 - 0.5
    np.testing.assert_allclose(metrics.forgetting_per_task(MATRIX), [0.2, 0.3])
    assert metrics.forgetting(MATRIX).value == pytest.approx(0.25)


IMPROVING = AccuracyMatrix(
    values=np.array([[0.5, NAN, NAN], [0.6, 0.4, NAN], [0.9, 0.3, 0.8]]),
    counts=np.array([1, 1, 1]),
)


def test_forgetting_variants_differ_where_an_older_task_improves():
    # Chaudhry: (0.6 - 0.9, 0.4 - 0.3);  peak: (0, 0.1);  from learned: (0.5 - 0.9, 0.4 - 0.3)
    assert metrics.forgetting(IMPROVING).value == pytest.approx((-0.3 + 0.1) / 2)
    assert metrics.forgetting_from_peak(IMPROVING).value == pytest.approx((0.0 + 0.1) / 2)
    assert metrics.forgetting_from_learned(IMPROVING).value == pytest.approx((-0.4 + 0.1) / 2)


def test_backward_transfer_is_the_change_since_a_task_was_learned():
    # (0.7 - 0.9, 0.5 - 0.8)
    assert metrics.backward_transfer(MATRIX).value == pytest.approx(-0.25)
    assert metrics.backward_transfer(IMPROVING).value == pytest.approx((0.4 - 0.1) / 2)


def test_they_are_what_a_published_implementation_computes():
    # Recorded from avalanche-lib 0.6.0 (MIT, ContinualAI): its standalone metrics Forgetting and BWT, told a[i, j]
    # of j <= i with initial=(i == j), and ForwardTransfer, told the untrained accuracy of j and then a[j-1, j].
    values = [[0.86, 0.87, 0.66, 0.5], [0.34, 0.57, 0.59, 0.33]]
    values += [[0.33, 1.0, 0.76, 0.46], [0.6, 0.98, 0.93, 0.89]]
    matrix = AccuracyMatrix(values=np.array(values), counts=np.ones(4, dtype=np.int64))
    assert metrics.forgetting_from_learned(matrix).value == pytest.approx(-0.10666666666666669)
    assert metrics.backward_transfer(matrix).value == pytest.approx(0.10666666666666669)
    untrained = np.array([0.1, 0.2, 0.15, 0.3])
    forward = np.mean([0.6699999999999999, 0.43999999999999995, 0.16000000000000003])
    assert metrics.forward_transfer(matrix, untrained).value == pytest.approx(forward)


def test_a_maximum_counts_only_after_the_task_was_learned():
    early = AccuracyMatrix(
        values=np.array([[0.5, 0.99, 0.1], [0.5, 0.6, 0.1], [0.5, 0.6, 0.7]]),
        counts=np.array([1, 1, 1]),
    )
    np.testing.assert_allclose(metrics.forgetting_per_task(early), [0.0, 0.0])


def test_forward_transfer_needs_scores_of_tasks_not_learned_yet():
    found = metrics.forward_transfer(MATRIX, np.zeros(3))
    assert found.value is None
    assert "cannot be predicted" in found.reason
    ahead = AccuracyMatrix(
        values=np.array([[0.9, 0.4, NAN], [0.6, 0.8, 0.3], [0.7, 0.5, 0.95]]),
        counts=np.array([1, 1, 1]),
    )
    # (0.4 - 0.2, 0.3 - 0.1)
    assert metrics.forward_transfer(ahead, np.array([0.5, 0.2, 0.1])).value == pytest.approx(0.2)
    assert "not measured" in metrics.forward_transfer(ahead).reason


def test_one_task_has_nothing_to_forget_and_says_so():
    for metric in (
        metrics.forgetting(ONE),
        metrics.forgetting_from_peak(ONE),
        metrics.forgetting_from_learned(ONE),
        metrics.backward_transfer(ONE),
        metrics.forward_transfer(ONE),
    ):
        assert metric.value is None
        assert "only one task" in metric.reason
    assert metrics.final_accuracy(ONE) == 0.8


def test_nothing_is_rounded():
    third = AccuracyMatrix(values=np.array([[1 / 3]]), counts=np.array([3]))
    assert metrics.final_accuracy(third) == 1 / 3
    assert metrics.average_incremental_accuracy(third) == 1 / 3


def test_summary_names_every_metric_of_the_matrix():
    found = metrics.summary(MATRIX)
    assert found["forgetting"].value == pytest.approx(0.25)
    assert found["forward_transfer"].value is None
    assert all(hasattr(metrics, name) for name in found)


def test_routing_accuracy_and_the_gap_are_shares():
    assert metrics.routing_accuracy(np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2])) == 0.75
    assert metrics.gap_to_joint(0.9, 0.75) == pytest.approx(0.15)


def test_calibration_error_of_two_bins_by_hand():
    confidence = np.array([0.9, 0.2, 0.8, 0.3])
    correct = np.array([True, False, False, True])
    # bins {0.2, 0.3}: |0.5 - 0.25|;  {0.8, 0.9}: |0.5 - 0.85|
    found = metrics.expected_calibration_error(confidence, correct, bins=2)
    assert found == pytest.approx(0.5 * 0.25 + 0.5 * 0.35)


def test_calibration_bins_hold_equal_mass():
    # 15 distinct confidences and 15 bins: one sample a bin.
    confidence = np.linspace(0.1, 0.9, 15)
    correct = np.arange(15) % 2
    expected = np.mean(np.abs(correct - confidence))
    assert metrics.expected_calibration_error(confidence, correct) == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.1, 0.5, 0.5000001, 0.9]), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_calibration_error_does_not_depend_on_the_order_of_samples(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    values = [
        metrics.expected_calibration_error(*(np.array(column) for column in zip(*r, strict=True)))
        for r in (rows, shuffled)
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-12)
    assert 0.0 <= values[0] <= 1.0


def test_negative_log_likelihood_is_the_mean_in_nats():
    assert metrics.negative_log_likelihood(np.log([0.5, 0.25])) == pytest.approx(np.log(8) / 2)
    assert metrics.negative_log_likelihood(np.array([0.0, -np.inf])) == np.inf


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: AccuracyMatrix(np.zeros((2, 3)), np.ones(2, dtype=int)), "square"),
        (lambda: AccuracyMatrix(np.full((2, 2), NAN), np.ones(2, dtype=int)), "every task seen"),
        (lambda: AccuracyMatrix(np.zeros((1, 1)), np.zeros(1, dtype=int)), "no test samples"),
        (lambda: metrics.accuracy(np.zeros(0), np.zeros(0)), "at least one"),
        (lambda: metrics.accuracy(np.zeros(2), np.zeros(3)), "2 predictions and 3 labels"),
        (lambda: metrics.expected_calibration_error(np.array([NAN]), np.array([1])), "finite"),
        (lambda: metrics.negative_log_likelihood(np.array([NAN])), "NaN"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(call, words):
    with pytest.raises(DataError, match=words):
        call()
