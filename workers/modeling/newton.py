"""Truncated Newton for smooth convex functions of many unknowns.

Close to its minimum Newton's method gains digits with every step, so that stopping early leaves a known and small
distance to the minimum, where a first-order method may stop far from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

FORCING = 0.3
"""How far the residual of Newton's equation is brought down, as a share of the gradient."""


class LocalModel(Protocol):
    """A function around one point."""

    value: float

    def gradient(self) -> Tensor:
        """The gradient there."""

    def curve(self, direction: Tensor) -> Tensor:
        """The Hessian there times a direction."""


def minimise(
    at: Callable[[Tensor], LocalModel], start: Tensor, *, steps: int, tolerance: float
) -> Tensor:
    """A minimiser of a smooth convex function.

    Newton's equation is solved by conjugate gradients as far as it pays, and the step is shortened until the value
    falls (Armijo).  Stops once a step lowers the value by less than ``tolerance``.  Line-search Newton-CG; Nocedal
    and Wright, Numerical Optimization, algorithm 7.1.

    Args:
        at: The function around a point.
        start: Where to begin; not changed.
        steps: Most Newton steps.
        tolerance: Smallest decrease worth going on for.
    """
    point, here = start.clone(), at(start)
    for _ in range(steps):
        gradient = here.gradient()
        direction = _newton_direction(here, gradient, tolerance)
        slope = float((gradient * direction).sum())
        if slope >= 0.0:
            break
        length = 1.0
        for _ in range(30):
            trial = point + length * direction
            there = at(trial)
            if there.value <= here.value + 1e-4 * length * slope:
                break
            length *= 0.5
        else:
            break
        gained = here.value - there.value
        point, here = trial, there
        if gained < tolerance:
            break
    return point


def _newton_direction(here: LocalModel, gradient: Tensor, tolerance: float) -> Tensor:
    """Approximately minus the inverse Hessian times the gradient, a direction of descent."""
    solution = torch.zeros_like(gradient)
    residual = -gradient
    search = residual.clone()
    size = first = float(residual.square().sum())
    for _ in range(100):
        if size <= FORCING**2 * first or size == 0.0:
            break
        bent = here.curve(search)
        curvature = float((search * bent).sum())
        if curvature <= 0.0:
            return solution if bool(solution.any()) else residual
        length = size / curvature
        solution.add_(search, alpha=length)
        residual.sub_(bent, alpha=length)
        if 0.5 * length * size < 0.1 * tolerance:  # what this round added to the decrease
            break
        before, size = size, float(residual.square().sum())
        search.mul_(size / before).add_(residual)
    return solution
