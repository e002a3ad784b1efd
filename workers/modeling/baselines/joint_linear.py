"""Joint logistic regression: the ceiling of a linear classifier on these features, trained on all classes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from workers.modeling.baselines.base import (
    Baseline,
    BaselineContext,
    BaselinePrediction,
    ClassTable,
)
from workers.modeling.baselines.memory import Memory
from workers.modeling.lbfgs import minimise
from workers.settings import Settings

CANDIDATES = (1e-1, 1e-2, 1e-3, 1e-4)


class JointLinearSettings(Settings):
    """Settings of `JointLinear`."""

    penalty: Literal["validation"] | PositiveFloat = Field(
        "validation",
        description=(
            "L2 penalty per sample: chosen on a fifth of the training samples held out, or fixed."
        ),
    )
    iterations: PositiveInt = Field(200, description="Most L-BFGS iterations of a fit.")


class JointLinear(Baseline):
    """Multinomial logistic regression on standardised features of all classes seen.  An upper bound.

    Minimises mean cross-entropy + penalty/2 |W|^2 (biases free) by L-BFGS.  The penalty is chosen on every
    fifth training sample of each class; then all samples are fitted.  Never sees test data.
    """

    name = "joint_linear"
    Options = JointLinearSettings
    cadence = "final"
    exemplar_free = False
    bound = "upper"

    def __init__(self, context: BaselineContext, options: JointLinearSettings) -> None:
        self._table = ClassTable(context.width)
        self._memory = Memory(self._table)
        self._options = options
        self._fitted: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self.penalty: float | None = None

    @classmethod
    def create(cls, context: BaselineContext, options: JointLinearSettings) -> JointLinear:
        """An untrained baseline."""
        return cls(context, options)

    def observe(self, features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
        """Keeps the task's samples; the fit waits until a prediction is asked for."""
        self._memory.add(features, labels, classes)
        self._fitted = None

    def predict(self, features: Tensor) -> BaselinePrediction:
        """Decides among all classes seen so far."""
        self._table.need_classes()
        rows = self._table.check(features)
        if self._fitted is None:
            self._fitted = self._fit()
        mean, deviation, weight, bias = self._fitted
        inputs = (rows.to(torch.float64) - mean) / deviation
        return self._table.decide(inputs @ weight.T + bias)

    def _fit(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        features, rows = self._memory.everything()
        samples = features.to(torch.float64)
        mean = samples.mean(dim=0)
        deviation = samples.std(dim=0, correction=0)
        deviation = torch.where(deviation > 1e-12, deviation, torch.ones_like(deviation))
        inputs = (samples - mean) / deviation
        if self._options.penalty == "validation":
            self.penalty = self._choose(inputs, rows)
        else:
            self.penalty = float(self._options.penalty)
        weight, bias = self._solve(inputs, rows, self.penalty, tolerance=1e-7)
        return mean, deviation, weight, bias

    def _choose(self, inputs: Tensor, targets: Tensor) -> float:
        """The penalty with the best accuracy on every fifth sample of each class."""
        rank = torch.zeros_like(targets)
        for row in range(len(self._table)):
            mine = torch.nonzero(targets == row).flatten()
            rank[mine] = torch.arange(len(mine))
        held = rank % 5 == 4
        if not bool(held.any()):
            return CANDIDATES[1]
        best, chosen = -1.0, CANDIDATES[0]
        fit, check = inputs[~held].to(torch.float32), inputs[held].to(torch.float32)
        for penalty in CANDIDATES:
            weight, bias = self._solve(fit, targets[~held], penalty, tolerance=1e-5)
            decided = (check @ weight.T + bias).argmax(dim=1)
            accuracy = float((decided == targets[held]).to(torch.float64).mean())
            if accuracy > best:
                best, chosen = accuracy, penalty
        return chosen

    def _solve(
        self, inputs: Tensor, targets: Tensor, penalty: float, *, tolerance: float
    ) -> tuple[Tensor, Tensor]:
        """Weights [C, d] and biases [C]; a class that is absent gets a bias of -inf.

        The unknowns are preconditioned by the bound 1/4 X^T X / N + penalty I on the Hessian (Boehning
        1992), which makes the number of iterations nearly independent of how features correlate.
        """
        classes, samples = len(self._table), len(inputs)
        extended = torch.cat([inputs, inputs.new_ones(samples, 1)], dim=1)
        penalties = inputs.new_full((extended.shape[1],), penalty)
        penalties[-1] = 0.0
        bound = extended.T @ extended / (4 * samples) + torch.diag(penalties)
        root = torch.linalg.cholesky(bound)
        turned = torch.linalg.solve_triangular(root, extended.T, upper=False)
        indicator = torch.nn.functional.one_hot(targets, classes).to(inputs.dtype)
        absent = indicator.sum(dim=0) == 0

        def plain(values: Tensor) -> Tensor:
            weights: Tensor = torch.linalg.solve_triangular(root.T, values, upper=True)
            return weights

        def objective(unknowns: Tensor) -> tuple[float, Tensor]:
            weights = plain(unknowns)
            scores = (turned.T @ unknowns).masked_fill(absent, -torch.inf)
            log_probs = torch.log_softmax(scores, dim=1)
            fit = -log_probs.gather(1, targets[:, None]).mean()
            pull = penalties[:, None] * weights
            error = turned @ (log_probs.exp() - indicator) / samples
            gradient = error + torch.linalg.solve_triangular(root, pull, upper=False)
            return float(fit + 0.5 * (pull * weights).sum()), gradient

        solution = plain(
            minimise(
                objective,
                inputs.new_zeros(extended.shape[1], classes),
                iterations=self._options.iterations,
                tolerance=tolerance,
            )
        ).T
        return solution[:, :-1], solution[:, -1].masked_fill(absent, -torch.inf)
