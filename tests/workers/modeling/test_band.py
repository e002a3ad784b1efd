"""A band reduction gives the numbers of dense linear algebra."""

from __future__ import annotations

import pytest
import torch

import workers.modeling.band as band
from workers.modeling.band import BandReduction


def problem(size, rank, sides=3):
    generator = torch.Generator().manual_seed(size)
    root = torch.randn(rank, size, generator=generator, dtype=torch.float64)
    return root.T @ root, torch.randn(size, sides, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("size", "rank", "block"), [(1, 1, 8), (7, 7, 8), (16, 20, 8), (37, 12, 8), (90, 90, 16)]
)
@pytest.mark.parametrize("stripe", [8, 768])
def test_shifted_systems_equal_dense_solutions(size, rank, block, stripe, monkeypatch):
    monkeypatch.setattr(band, "_STRIPE", stripe)
    matrix, sides = problem(size, rank)
    before = matrix.clone()
    reduction = BandReduction(matrix, sides, block=block)
    assert torch.equal(matrix, before)
    assert reduction.trace == pytest.approx(float(matrix.trace()))
    shifts = torch.tensor([1e-3, 0.5, 40.0], dtype=torch.float64)
    found = reduction.solve(shifts)
    for index, shift in enumerate(shifts):
        shifted = matrix + shift * torch.eye(size, dtype=torch.float64)
        exact = torch.linalg.solve(shifted, sides)
        assert torch.allclose(reduction.solution(float(shift)), exact, atol=1e-8)
        assert torch.isclose(found.products[index], (exact * sides).sum(), rtol=1e-8)
        assert torch.isclose(found.norms[index], exact.square().sum(), rtol=1e-8)
        assert torch.isclose(found.traces[index], torch.linalg.inv(shifted).trace(), rtol=1e-8)


def test_a_matrix_of_zeros_is_no_problem():
    reduction = BandReduction(torch.zeros(20, 20).double(), torch.ones(20, 2).double(), block=8)
    assert torch.allclose(reduction.solution(2.0), torch.full((20, 2), 0.5).double())
    assert float(reduction.solve(torch.tensor([2.0]).double()).traces[0]) == pytest.approx(10.0)


def test_more_shifts_than_are_worked_off_at_once_keep_their_order():
    matrix, sides = problem(24, 24)
    reduction = BandReduction(matrix, sides, block=8)
    shifts = torch.linspace(1.0, 40.0, 40).double()
    together = reduction.solve(shifts)
    alone = [float(reduction.solve(shift[None]).traces[0]) for shift in shifts]
    assert together.traces.tolist() == pytest.approx(alone)


def test_a_matrix_of_low_rank_is_solved_down_to_shifts_far_below_its_largest_eigenvalue():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, 300, generator=generator, dtype=torch.float64)
    matrix, sides = root.T @ root, root.T @ torch.randn(3, 2, generator=generator).double()
    reduction = BandReduction(matrix, sides)
    for shift in (1e-9, 1e-6, 1e-2):
        found = reduction.solution(shift * float(matrix.trace()))
        inner = root @ root.T + shift * matrix.trace() * torch.eye(3)
        expected = root.T @ torch.linalg.solve(inner, torch.linalg.lstsq(root.T, sides).solution)
        assert (found - expected).norm() < 1e-5 * expected.norm()


def test_a_shift_below_working_precision_is_marked_and_disturbs_no_other():
    row = torch.linspace(1.0, 2.0, 200, dtype=torch.float64)[None]
    matrix, sides = row.T @ row, row.T
    reduction = BandReduction(matrix, sides)
    solved = reduction.solve(torch.tensor([1e-300, 1.0], dtype=torch.float64))
    assert torch.isnan(solved.traces).tolist() == [True, False]
    alone = reduction.solve(torch.tensor([1.0], dtype=torch.float64))
    assert torch.allclose(solved.products[1:], alone.products)
