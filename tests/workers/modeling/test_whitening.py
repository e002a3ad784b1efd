"""Whitening comes from the first task's sums and transforms features and statistics alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.modeling.banks import WIDTH, samples
from workers.errors import DataError
from workers.modeling.pooling import PooledStatistics
from workers.modeling.shrinkage import oas_intensity, shrunk_covariance
from workers.modeling.statistics import TaskStatistics
from workers.modeling.whitening import Whitening

QUICK = settings(max_examples=20, deadline=None)


def collect(features, labels, classes):
    return TaskStatistics.from_features(features, labels, classes=classes)


def test_whitened_first_task_has_mean_zero_and_nearly_unit_within_class_covariance():
    features, labels = samples(range(2), each=4000)
    white = Whitening.from_statistics(collect(features, labels, 2)).apply(features).double()
    assert white.mean(0).abs().max() < 1e-3
    centred = torch.cat(
        [white[labels == index] - white[labels == index].mean(0) for index in (0, 1)]
    )
    covariance = centred.T @ centred / (len(centred) - 2)
    assert torch.allclose(covariance, torch.eye(WIDTH, dtype=torch.float64), atol=0.05)


def test_statistics_are_transformed_exactly_as_the_features_are():
    features, labels = samples(range(3))
    whitening = Whitening.from_statistics(collect(*samples(range(2), seed=4), 2))
    pooled = PooledStatistics.of([collect(features, labels, 3)])
    direct = PooledStatistics.of(
        [
            collect(
                (features.double() - torch.from_numpy(whitening.mean))
                @ torch.from_numpy(whitening.matrix),
                labels,
                3,
            )
        ]
    )
    means, scatter = pooled.whitened(whitening)
    np.testing.assert_allclose(means, direct.means, atol=1e-10)
    np.testing.assert_allclose(scatter, direct.within_scatter(), atol=1e-9)


def test_it_returns_float32_from_half_precision_within_tolerance():
    features, labels = samples(range(2))
    whitening = Whitening.from_statistics(collect(features, labels, 2))
    full, half = whitening.apply(features), whitening.apply(features.half())
    assert full.dtype == half.dtype == torch.float32
    assert torch.allclose(full, half, atol=2e-2)


@QUICK
@given(st.permutations(range(24)))
def test_the_order_of_samples_does_not_matter(order):
    features, labels = samples(range(2))
    shuffled = torch.tensor(order)
    first = Whitening.from_statistics(collect(features, labels, 2))
    second = Whitening.from_statistics(collect(features[shuffled], labels[shuffled], 2))
    np.testing.assert_allclose(first.matrix, second.matrix, atol=1e-9)


def test_fewer_samples_than_dimensions_constant_features_or_one_sample_still_whiten():
    generator = torch.Generator().manual_seed(0)
    few = torch.randn(5, 64, generator=generator)
    constant = torch.cat([few, torch.full((5, 1), 3.0)], dim=1)
    for features in (few, constant, few[:1], torch.zeros(4, 8)):
        labels = torch.zeros(len(features), dtype=torch.int64)
        whitening = Whitening.from_statistics(collect(features, labels, 1))
        assert torch.isfinite(whitening.apply(features)).all()
        assert 0.0 <= whitening.shrinkage <= 1.0


@pytest.mark.parametrize("copies", [1, 300])
def test_samples_without_spread_are_moved_and_not_stretched(copies):
    """Their scatter is round-off, which would be blown up by many orders of magnitude."""
    features, labels = samples(range(6), each=1)
    alike, names = (features.double() / 3 + 30).repeat(copies, 1), labels.repeat(copies)
    whitening = Whitening.from_statistics(collect(alike, names, 6))
    np.testing.assert_array_equal(whitening.matrix, np.eye(WIDTH))
    pooled = PooledStatistics.of([collect(alike, names, 6)])
    np.testing.assert_array_equal(pooled.within_scatter(), np.zeros((WIDTH, WIDTH)))


def test_a_small_spread_far_from_the_origin_is_no_round_off():
    features, labels = samples(range(2), each=200)
    pooled = PooledStatistics.of([collect(1e-3 * features.double() + 30, labels, 2)])
    around = PooledStatistics.of([collect(1e-3 * features.double(), labels, 2)])
    np.testing.assert_allclose(pooled.within_scatter(), around.within_scatter(), atol=1e-8)
    assert np.trace(pooled.within_scatter()) > 1e-3


def test_arrays_rebuild_it_to_the_bit():
    features, labels = samples(range(2))
    whitening = Whitening.from_statistics(collect(features, labels, 2))
    again = Whitening.from_arrays(whitening.to_arrays())
    assert torch.equal(again.apply(features), whitening.apply(features))
    assert again.shrinkage == whitening.shrinkage


def test_another_width_is_refused():
    whitening = Whitening.from_statistics(collect(*samples(range(2)), 2))
    with pytest.raises(DataError, match=f"width {WIDTH}"):
        whitening.apply(torch.zeros(1, WIDTH + 1))


def test_oas_follows_its_formula_and_falls_with_the_number_of_samples():
    covariance = np.diag([1.0, 2.0, 3.0])
    # tr(S^2) = 14, tr(S)^2 = 36, p = 3; at n = 10 the ratio exceeds one.
    assert oas_intensity(covariance, 10) == 1.0
    assert oas_intensity(covariance, 100) == pytest.approx((14 / 3 + 36) / ((101 - 2 / 3) * 2))
    assert oas_intensity(covariance, 1000) < oas_intensity(covariance, 100)
    assert oas_intensity(np.eye(3), 10) == 1.0


def test_a_fixed_intensity_is_used_as_given():
    scatter = np.diag([2.0, 4.0])
    found, used = shrunk_covariance(scatter, 2, 0.5)
    assert used == 0.5
    np.testing.assert_allclose(
        np.diag(found), [0.5 * 1 + 0.5 * 1.5, 0.5 * 2 + 0.5 * 1.5], rtol=1e-8
    )
