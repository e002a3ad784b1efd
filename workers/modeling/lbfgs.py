"""Limited-memory BFGS for smooth convex functions.

``torch.optim.LBFGS`` does the same but pulls in a second's worth of imports with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torch import Tensor


def minimise(
    objective: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,
    *,
    iterations: int,
    tolerance: float,
    history: int = 20,
) -> Tensor:
    """A minimiser of a smooth convex function.

    Stops once a step lowers the value by less than ``tolerance``.  Two-loop recursion with a backtracking
    (Armijo) line search; Nocedal and Wright, Numerical Optimization, algorithms 7.4 and 3.1.

    Args:
        objective: Value and gradient at a point.
        start: Where to begin; not changed.
        iterations: Most steps.
        tolerance: Smallest decrease worth going on for.
        history: Number of past steps that shape the search direction.
    """
    point = start.clone()
    value, gradient = objective(point)
    pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=history)
    for _ in range(iterations):
        direction = -_inverse_hessian_times(gradient, pairs)
        slope = float((gradient * direction).sum())
        if slope >= 0.0:
            break
        length = 1.0
        for _ in range(30):
            trial = point + length * direction
            trial_value, trial_gradient = objective(trial)
            if trial_value <= value + 1e-4 * length * slope:
                break
            length *= 0.5
        else:
            break
        moved, turned = trial - point, trial_gradient - gradient
        curvature = float((moved * turned).sum())
        if curvature > 0.0:
            pairs.append((moved, turned, curvature))
        gained = value - trial_value
        point, value, gradient = trial, trial_value, trial_gradient
        if gained < tolerance:
            break
    return point


def _inverse_hessian_times(gradient: Tensor, pairs: deque[tuple[Tensor, Tensor, float]]) -> Tensor:
    result = gradient.clone()
    shares = []
    for moved, turned, curvature in reversed(pairs):
        share = float((moved * result).sum()) / curvature
        shares.append(share)
        result.sub_(turned, alpha=share)
    if pairs:
        _, turned, curvature = pairs[-1]
        result.mul_(curvature / float(turned.square().sum()))
    for (moved, turned, curvature), share in zip(pairs, reversed(shares), strict=True):
        result.add_(moved, alpha=share - float((turned * result).sum()) / curvature)
    return result
