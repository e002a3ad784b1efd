"""L-BFGS finds the minimum of convex functions."""

from __future__ import annotations

import torch

from workers.modeling.lbfgs import minimise


def test_a_quadratic_is_minimised_at_its_solution():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(12, 12, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + 0.1 * torch.eye(12, dtype=torch.float64)
    target = torch.randn(12, generator=generator, dtype=torch.float64)

    def objective(x):
        return float(0.5 * x @ matrix @ x - target @ x), matrix @ x - target

    start = torch.zeros(12, dtype=torch.float64)
    found = minimise(objective, start, iterations=200, tolerance=1e-14)
    assert torch.allclose(found, torch.linalg.solve(matrix, target), atol=1e-5)
    assert torch.equal(start, torch.zeros(12, dtype=torch.float64))


def test_the_value_never_rises_and_iterations_are_bounded():
    values = []

    def objective(x):
        values.append(float((x**4).sum() + (x**2).sum()))
        return values[-1], 4 * x**3 + 2 * x

    start = torch.full((3,), 5.0, dtype=torch.float64)
    near = minimise(objective, start, iterations=3, tolerance=0.0)
    assert float((near**4).sum()) < float((start**4).sum())
    far = minimise(objective, start, iterations=100, tolerance=1e-12)
    assert far.abs().max() < 1e-4


def test_a_start_at_the_minimum_is_returned():
    found = minimise(
        lambda x: (0.0, torch.zeros_like(x)), torch.ones(2), iterations=5, tolerance=0.0
    )
    assert torch.equal(found, torch.ones(2))
