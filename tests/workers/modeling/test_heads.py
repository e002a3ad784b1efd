"""Cosine heads."""

from __future__ import annotations

import math

import pytest
import torch

from workers.errors import DataError
from workers.modeling.heads import (
    UnifiedHead,
    class_sums,
    cosine_logits,
    grow_unified_head,
    put_rows,
    softmax_entropy,
)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_logits_are_scaled_cosines():
    outputs, rows = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, -2.0]])
    logits = cosine_logits(outputs, rows, torch.tensor(10.0))
    torch.testing.assert_close(logits, torch.tensor([[6.0, -8.0]]))


def test_a_zero_row_scores_zero():
    logits = cosine_logits(torch.ones(1, 3), torch.zeros(2, 3), torch.tensor(5.0))
    assert torch.equal(logits, torch.zeros(1, 2))


def test_stacked_heads_score_as_each_alone():
    outputs, rows = torch.randn(2, 4, 6), torch.randn(2, 3, 6)
    scales = torch.tensor([2.0, 5.0])
    together = cosine_logits(outputs, rows, scales)
    for index in range(2):
        alone = cosine_logits(outputs[index], rows[index], scales[index])
        torch.testing.assert_close(together[index], alone)


def test_entropy_of_equal_logits_is_log_of_classes():
    assert float(softmax_entropy(torch.zeros(1, 8))) == pytest.approx(math.log(8), abs=1e-6)


def test_first_head_is_uniform_within_one_over_root_width_and_scale_one():
    head = grow_unified_head(None, classes=50, width=64, generator=generator())
    assert 0.12 < float(head.weight.abs().max()) <= 0.125
    assert float(head.scale) == 1.0


def test_later_heads_keep_older_rows_and_scale_and_append_zeros():
    old = UnifiedHead(torch.randn(3, 4), torch.tensor(2.5))
    head = grow_unified_head(old, classes=5, width=4, generator=generator())
    assert torch.equal(head.weight[:3], old.weight)
    assert torch.equal(head.weight[3:], torch.zeros(2, 4))
    assert float(head.scale) == 2.5


def test_a_head_never_loses_rows():
    old = UnifiedHead(torch.randn(3, 4), torch.tensor(1.0))
    assert grow_unified_head(old, classes=2, width=4, generator=generator()).weight.shape == (3, 4)


def test_a_head_of_another_width_is_refused():
    old = UnifiedHead(torch.randn(3, 4), torch.tensor(1.0))
    with pytest.raises(DataError, match="4 wide but the features are 6 wide"):
        grow_unified_head(old, classes=5, width=6, generator=generator())


def test_class_sums_add_over_parts():
    outputs, labels = torch.randn(20, 3), torch.arange(20) % 4
    sums, counts = class_sums(outputs, labels, 5)
    parts = [class_sums(outputs[rows], labels[rows], 5) for rows in (slice(0, 7), slice(7, 20))]
    torch.testing.assert_close(sums, parts[0][0] + parts[1][0])
    assert counts.tolist() == [5, 5, 5, 5, 0]


def test_only_present_rows_are_replaced():
    replaced = put_rows(torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([True, False]))
    assert replaced.tolist() == [[1, 1, 1], [0, 0, 0]]
