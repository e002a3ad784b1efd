"""Multinomial logistic regression with an L2 penalty, to its optimum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.modeling.newton import minimise

_NEGLIGIBLE = 1e-12
"""Share of the largest variance below which a direction counts as constant."""


@dataclass(frozen=True)
class Design:
    """Inputs of a regression in their own principal axes: made once, for any number of penalties.

    A penalised solution lies in the span of the centred inputs, so no more than min(N, d) axes are needed; and a
    bound on the Hessian is diagonal in them.

    Attributes:
        mean: [d], float64.
        axes: [d, r], orthonormal, float64.
        spectrum: Eigenvalues of the centred inputs' Gram matrix, float64 [r], falling.
        rows: Centred inputs in these axes, [N, r], of the inputs' own type, in which products are formed.
    """

    mean: Tensor
    axes: Tensor
    spectrum: Tensor
    rows: Tensor

    @classmethod
    def of(cls, inputs: Tensor) -> Design:
        """From inputs [N, d] of any float type."""
        samples, width = inputs.shape
        mean = inputs.mean(dim=0, dtype=torch.float64)
        centred = inputs - mean.to(inputs.dtype)
        if samples <= width:
            exact = centred.to(torch.float64)
            spectrum, vectors = torch.linalg.eigh(exact @ exact.T)
            kept = spectrum > _NEGLIGIBLE * spectrum[-1].clamp(min=1e-300)
            spectrum = spectrum[kept].flip(0)
            axes = exact.T @ vectors[:, kept].flip(1) / spectrum.sqrt()
        else:
            spectrum, axes = torch.linalg.eigh((centred.T @ centred).to(torch.float64))
            spectrum, axes = spectrum.clamp(min=0.0).flip(0), axes.flip(1)
        return cls(mean, axes, spectrum, centred @ axes.to(inputs.dtype))

    def turned(self, weights: Tensor) -> Tensor:
        """Weights over biases [d + 1, C] of the inputs as those of ``rows`` [r + 1, C], float64."""
        weights = weights.to(torch.float64)
        own = weights[:-1]
        return torch.cat([self.axes.T @ own, (weights[-1] + self.mean @ own)[None]])

    def turned_back(self, weights: Tensor) -> Tensor:
        """The inverse of `turned`, up to what lies outside the inputs' span."""
        own = self.axes @ weights[:-1].to(torch.float64)
        return torch.cat([own, (weights[-1] - self.mean @ own)[None]])


def fit(
    design: Design,
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
        design: The inputs; the value is summed in float64.
        targets: Class rows, int64 [N].
        classes: C.
        penalty: Of the squared weights, per sample; positive.
        tolerance: A step that lowers the value by less is the last one.
        steps: Most Newton steps.
        start: Weights to begin with, [d + 1, C]; zeros when left out.

    Returns:
        Weights over biases [d + 1, C], float64; a class without samples has bias -inf.
    """
    problem = _Problem(design, targets, classes, penalty)
    begin = problem.preconditioned(start)
    weights = problem.plain(minimise(problem.at, begin, steps=steps, tolerance=tolerance))
    weights[-1].masked_fill_(problem.absent, -torch.inf)
    return weights


class _Problem:
    """The loss over preconditioned unknowns u = w / scale, in the design's axes."""

    def __init__(self, design: Design, targets: Tensor, classes: int, penalty: float) -> None:
        kind = design.rows.dtype
        self.targets = targets
        self.samples = len(targets)
        self.order = torch.arange(self.samples)
        bound = torch.cat([design.spectrum / (4 * self.samples) + penalty, torch.tensor([0.25])])
        self._scale = bound.rsqrt()[:, None]
        penalties = torch.full_like(self._scale, penalty)
        penalties[-1] = 0.0
        self.pull = (penalties * self._scale.square()).to(kind)
        ones = design.rows.new_ones(self.samples, 1)
        self.rows = torch.cat([design.rows, ones], dim=1) * self._scale.T.to(kind)  # [N, r + 1]
        self.turned = self.rows.T.contiguous()  # [r + 1, N]
        self.absent = torch.bincount(targets, minlength=classes) == 0
        self.some_absent = bool(self.absent.any())
        self._design, self._shape = design, (self.rows.shape[1], classes)

    def preconditioned(self, weights: Tensor | None) -> Tensor:
        """u of weights of the inputs."""
        if weights is None:
            return self.rows.new_zeros(self._shape)
        finite = weights.masked_fill(weights.isinf(), 0.0)
        return (self._design.turned(finite) / self._scale).to(self.rows.dtype)

    def plain(self, unknowns: Tensor) -> Tensor:
        """Weights of the inputs of u."""
        return self._design.turned_back(unknowns.to(torch.float64) * self._scale)

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
        pulled = problem.pull * unknowns
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
        return bent.div_(problem.samples).addcmul_(problem.pull, direction)
