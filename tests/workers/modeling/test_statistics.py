"""Statistics are plain sums: exact, additive, and without any sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.modeling.banks import WIDTH, samples
from workers.errors import BankError, DataError
from workers.modeling.packing import pack_upper, unpack_upper
from workers.modeling.pooling import PooledStatistics
from workers.modeling.projection import ProjectionSpec, RandomProjection
from workers.modeling.statistics import TaskStatistics, merge
from workers.modeling.whitening import Whitening

QUICK = settings(max_examples=20, deadline=None)


def collect(features, labels, classes=3, **options):
    return TaskStatistics.from_features(features, labels, classes=classes, **options)


def assert_same(left: TaskStatistics, right: TaskStatistics, rtol: float = 1e-12) -> None:
    mine, theirs = left.to_arrays(), right.to_arrays()
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_allclose(array, theirs[name], rtol=rtol, atol=1e-10)


def test_sums_equal_those_of_a_plain_float64_computation():
    features, labels = samples(range(3))
    found = collect(features, labels)
    exact = features.numpy().astype(np.float64)
    for index in range(3):
        mine = exact[labels.numpy() == index]
        assert found.counts[index] == len(mine)
        np.testing.assert_allclose(found.sums[index], mine.sum(0), rtol=1e-14)
        np.testing.assert_allclose(
            unpack_upper(found.gram[index], WIDTH), mine.T @ mine, rtol=1e-13, atol=1e-13
        )


def test_float32_features_are_accumulated_in_float64():
    features = torch.full((40_000, 1), 1.0 + 2.0**-20)
    found = collect(features, torch.zeros(40_000, dtype=torch.int64), classes=1)
    assert found.sums[0, 0] == 40_000 * (1.0 + 2.0**-20)


def test_packing_is_undone_exactly():
    matrix = np.random.RandomState(0).standard_normal((7, 7))
    matrix += matrix.T
    assert np.array_equal(unpack_upper(pack_upper(matrix), 7), matrix)


@QUICK
@given(st.integers(1, 5), st.randoms(use_true_random=False), st.sampled_from(["class", "task"]))
def test_shards_merged_in_any_order_give_the_statistics_of_the_whole(parts, random, granularity):
    features, labels = samples(range(3))
    projection = RandomProjection(ProjectionSpec(5, WIDTH, 12))
    owner = np.array([random.randrange(parts) for _ in range(len(labels))])
    shards = [
        collect(
            features[owner == part],
            labels[owner == part],
            granularity=granularity,
            projection=projection,
        )
        for part in range(parts)
        if (owner == part).any()
    ]
    random.shuffle(shards)
    whole = collect(features, labels, granularity=granularity, projection=projection)
    assert_same(merge(shards), whole)


@QUICK
@given(st.permutations(range(4)))
def test_tasks_pooled_in_any_order_give_the_same_totals(order):
    tasks = [collect(*samples([index], seed=index), classes=index + 1) for index in range(4)]
    pooled = PooledStatistics.of(tasks)
    shuffled = PooledStatistics.of([tasks[index] for index in order])
    np.testing.assert_allclose(pooled.within_scatter(), shuffled.within_scatter(), atol=1e-9)
    np.testing.assert_allclose(pooled.gram, shuffled.gram, rtol=1e-12)
    assert sorted(pooled.counts) == sorted(shuffled.counts)


def test_leaving_a_class_out_equals_never_having_seen_it():
    features, labels = samples(range(3))
    keep = labels != 1
    without = collect(features[keep], torch.where(labels[keep] == 2, 1, 0), classes=2)
    assert_same(collect(features, labels).without_class(1), without, rtol=0)


def test_a_class_cannot_be_taken_out_of_a_gram_matrix_of_the_whole_task():
    with pytest.raises(BankError, match="granularity 'class'"):
        collect(*samples(range(3)), granularity="task").without_class(0)


def test_a_tasks_gram_matrix_is_the_sum_of_its_classes():
    features, labels = samples(range(3))
    per_class = collect(features, labels).gram.sum(axis=0, keepdims=True)
    np.testing.assert_allclose(collect(features, labels, granularity="task").gram, per_class)


def test_arrays_rebuild_the_statistics_and_hold_no_projection_weights():
    projection = RandomProjection(ProjectionSpec(3, WIDTH, 20))
    found = collect(*samples(range(3)), projection=projection)
    arrays = found.to_arrays()
    assert arrays["projected.gram"].shape == (20 * 21 // 2,)
    assert (WIDTH, 20) not in [array.shape for array in arrays.values()]
    again = TaskStatistics.from_arrays(arrays)
    assert again.projection == projection.spec
    assert_same(again, found, rtol=0)


def test_a_projection_is_drawn_from_its_specification_alone():
    features, _ = samples([0])
    spec = ProjectionSpec(11, WIDTH, 9)
    assert torch.equal(RandomProjection(spec)(features), RandomProjection(spec)(features))
    other = ProjectionSpec(12, WIDTH, 9)
    assert not torch.equal(RandomProjection(spec)(features), RandomProjection(other)(features))


def test_rows_that_are_fetched_when_needed_give_the_same_statistics():
    features, labels = samples(range(3))

    class Rows:
        def __len__(self):
            return len(features)

        def gather(self, rows):
            return features.numpy()[rows]

    assert_same(collect(Rows(), labels), collect(features, labels), rtol=0)


@QUICK
@given(st.sampled_from([torch.float16, torch.bfloat16]))
def test_half_precision_features_change_statistics_within_their_precision(dtype):
    features, labels = samples(range(3))
    half = features.to(dtype).to(torch.float32) if dtype == torch.bfloat16 else features.half()
    scale = float(features.abs().max())
    precision = {torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    difference = collect(half, labels).sums - collect(features, labels).sums
    assert np.abs(difference).max() < 12 * scale * precision


@pytest.mark.parametrize(
    ("features", "labels", "words"),
    [
        (torch.full((2, 4), torch.nan), [0, 0], "sample 0 holds NaN"),
        (torch.full((2, 4), torch.inf), [0, 0], "NaN or infinite"),
        (torch.ones(2, 4), [0, 3], "3 classes"),
        (torch.ones(2, 4), [0, -1], "3 classes"),
        (torch.ones(2, 4), [0], "one label a feature"),
        (torch.ones(0, 4), [], "no training samples"),
        (torch.ones(2), [0, 0], r"\[samples, width\]"),
    ],
)
def test_bad_features_and_labels_are_refused_by_name(features, labels, words):
    with pytest.raises(DataError, match=words):
        collect(features, labels)


def test_statistics_of_different_classes_or_widths_do_not_merge():
    features, labels = samples(range(3))
    with pytest.raises(DataError, match="cannot be merged"):
        collect(features, labels) + collect(features[:, :8], labels)
    with pytest.raises(DataError, match="cannot be merged"):
        collect(features, labels) + collect(features, labels, granularity="task")
    with pytest.raises(DataError, match="do not fit"):
        PooledStatistics.of([collect(features, labels), collect(features[:, :8], labels)])


def test_a_whitened_projection_needs_its_whitening():
    with pytest.raises(DataError, match="whitened=True"):
        RandomProjection(ProjectionSpec(0, WIDTH, 8, whitened=True))
    whitening = Whitening.from_statistics(collect(*samples(range(3))))
    with pytest.raises(DataError, match="whitened=False"):
        RandomProjection(ProjectionSpec(0, WIDTH, 8), whitening)
