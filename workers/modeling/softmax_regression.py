"""Multinomial logistic regression with an L2 penalty, to its optimum."""

from __future__ import annotations

import torch
from torch import Tensor

from workers.modeling.newton import minimise


def fit(
    inputs: Tensor,
    targets: Tensor,
    *,
    classes: int,
    penalty: float,
    tolerance: float,
    steps: int,
    start: Tensor | None = None,
) -> Tensor:
    """Minimises mean cross-entropy + penalty/2 |W|^2, biases free, by truncated Newton.

    The unknowns are preconditioned by the bound 1/4 X^T X / N + penalty I on the Hessian (Boehning 1992), which makes
    the number of steps nearly independent of how features correlate.

    Args:
        inputs: [N, d] of any float type, in which products are formed too; the value is summed in float64.
        targets: Class rows, int64 [N].
        classes: C.
        penalty: Of the squared weights, per sample; positive.
        tolerance: A step that lowers the value by less is the last one.
        steps: Most Newton steps.
        start: Weights to begin with, [d + 1, C]; zeros when left out.

    Returns:
        Weights over biases [d + 1, C], of the type of ``inputs``; a class without samples has bias -inf.
    """
    problem = _Problem(inputs, targets, classes, penalty)
    begin = problem.preconditioned(start)
    weights = problem.plain(minimise(problem.at, begin, steps=steps, tolerance=tolerance))
    weights[-1].masked_fill_(problem.absent, -torch.inf)
    return weights


class _Problem:
    """The loss over preconditioned unknowns u = R^T w, where R R^T is the bound on the Hessian."""

    def __init__(self, inputs: Tensor, targets: Tensor, classes: int, penalty: float) -> None:
        samples, width = inputs.shape
        extended = torch.cat([inputs, inputs.new_ones(samples, 1)], dim=1)
        penalties = torch.full((width + 1,), penalty, dtype=torch.float64)
        penalties[-1] = 0.0
        gram = (extended.T @ extended).to(torch.float64)
        root = torch.linalg.cholesky(gram / (4 * samples) + torch.diag(penalties))
        identity = torch.eye(width + 1, dtype=torch.float64)
        inverse = torch.linalg.solve_triangular(root, identity, upper=False)
        self.targets = targets
        self.samples = samples
        self.order = torch.arange(samples)
        self.pull = (inverse @ (penalties[:, None] * inverse.T)).to(inputs.dtype)
        self.turned = inverse.to(inputs.dtype) @ extended.T  # [d + 1, N]
        self.rows = self.turned.T.contiguous()  # [N, d + 1]
        self.absent = torch.bincount(targets, minlength=classes) == 0
        self.some_absent = bool(self.absent.any())
        self._root, self._inverse = root, inverse
        self._shape, self._dtype = (width + 1, classes), inputs.dtype

    def preconditioned(self, weights: Tensor | None) -> Tensor:
        """u of weights w."""
        if weights is None:
            return torch.zeros(self._shape, dtype=self._dtype)
        finite = weights.to(torch.float64).masked_fill(weights.isinf(), 0.0)
        turned: Tensor = self._root.T @ finite
        return turned.to(self._dtype)

    def plain(self, unknowns: Tensor) -> Tensor:
        """w of unknowns u."""
        weights: Tensor = self._inverse.T @ unknowns.to(torch.float64)
        return weights.to(self._dtype)

    def at(self, unknowns: Tensor) -> _Local:
        """The loss around u."""
        return _Local(self, unknowns)


class _Local:
    """The loss around one point; see `workers.modeling.newton.LocalModel`."""

    def __init__(self, problem: _Problem, unknowns: Tensor) -> None:
        scores = problem.rows @ unknowns
        if problem.some_absent:
            scores.masked_fill_(problem.absent, -torch.inf)
        log_probs = torch.log_softmax(scores, dim=1)
        own = log_probs[problem.order, problem.targets]
        pulled = problem.pull @ unknowns
        pull = float((pulled * unknowns).sum(dtype=torch.float64))
        self.value = 0.5 * pull - float(own.mean(dtype=torch.float64))
        self._problem, self._pulled, self._probs = problem, pulled, log_probs.exp_()

    def gradient(self) -> Tensor:
        """X^T (P - Y) / N + penalty W, preconditioned."""
        problem = self._problem
        error = self._probs.clone()
        error[problem.order, problem.targets] -= 1.0
        slope: Tensor = problem.turned @ error
        return slope.div_(problem.samples).add_(self._pulled)

    def curve(self, direction: Tensor) -> Tensor:
        """The Hessian times a direction: X^T [P * (Z - sum of P * Z)] / N with Z = X V, and the penalty's part."""
        problem, probs = self._problem, self._probs
        moved = problem.rows @ direction
        moved.sub_((probs * moved).sum(dim=1, keepdim=True)).mul_(probs)
        bent: Tensor = problem.turned @ moved
        return bent.div_(problem.samples).add_(problem.pull @ direction)
