"""Truncated Newton finds the minimum of convex functions."""

from __future__ import annotations

import torch

from workers.modeling.newton import minimise


class Function:
    """A function given by callables, as `minimise` wants it; remembers every value."""

    def __init__(self, value, gradient, curve):
        self._value, self._gradient, self._curve = value, gradient, curve
        self.values = []

    def __call__(self, x):
        local = type("Local", (), {})()
        local.value = float(self._value(x))
        local.gradient = lambda: self._gradient(x)
        local.curve = lambda v: self._curve(x, v)
        self.values.append(local.value)
        return local


def test_a_quadratic_is_minimised_at_its_solution():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(12, 12, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + 0.1 * torch.eye(12, dtype=torch.float64)
    target = torch.randn(12, generator=generator, dtype=torch.float64)
    bowl = Function(
        lambda x: 0.5 * x @ matrix @ x - target @ x,
        lambda x: matrix @ x - target,
        lambda x, v: matrix @ v,
    )
    start = torch.zeros(12, dtype=torch.float64)
    found = minimise(bowl, start, steps=200, tolerance=1e-14)
    assert torch.allclose(found, torch.linalg.solve(matrix, target), atol=1e-5)
    assert torch.equal(start, torch.zeros(12, dtype=torch.float64))


def steep() -> Function:
    return Function(
        lambda x: (x**4).sum() + (x**2).sum(),
        lambda x: 4 * x**3 + 2 * x,
        lambda x, v: (12 * x**2 + 2) * v,
    )


def test_steps_are_bounded_and_every_one_of_them_lowers_the_value():
    start = torch.full((3,), 5.0, dtype=torch.float64)
    reached = [
        steep()(minimise(steep(), start, steps=steps, tolerance=0.0)).value for steps in range(5)
    ]
    assert reached == sorted(reached, reverse=True)
    assert len(set(reached)) == len(reached)
    far = minimise(steep(), start, steps=100, tolerance=1e-12)
    assert far.abs().max() < 1e-4


def test_a_step_that_overshoots_is_shortened():
    # From 3, Newton's step on log(cosh) leads to -98 and away for good.
    valley = Function(
        lambda x: (x.cosh().log()).sum(), torch.tanh, lambda x, v: v / x.cosh().square()
    )
    found = minimise(valley, torch.tensor([3.0], dtype=torch.float64), steps=50, tolerance=1e-12)
    assert found.abs().max() < 1e-4


def test_a_start_at_the_minimum_is_returned():
    flat = Function(lambda x: 0.0 * x.sum(), torch.zeros_like, lambda x, v: torch.zeros_like(v))
    assert torch.equal(minimise(flat, torch.ones(2), steps=5, tolerance=0.0), torch.ones(2))
