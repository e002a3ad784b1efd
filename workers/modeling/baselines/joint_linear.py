"""Joint logistic regression: the ceiling of a linear classifier on these features, trained on all classes at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.modeling.baseline_settings import JointLinearSettings
from workers.modeling.baselines.base import (
    Baseline,
    BaselineContext,
    BaselinePrediction,
    ClassTable,
)
from workers.modeling.baselines.memory import Memory
from workers.modeling.softmax_regression import Design, fit

CANDIDATES = (1e-1, 1e-2, 1e-3, 1e-4)
CHOICE_TOLERANCE = 1e-3
FINAL_TOLERANCE = 1e-6
"""Decrease of the mean loss below which a Newton step is the last: enough to compare penalties; the optimum itself."""


class JointLinear(Baseline):
    """Multinomial logistic regression on standardised features of all classes seen.  An upper bound.

    Minimises mean cross-entropy + penalty/2 |W|^2 (biases free).  The penalty is chosen on every fifth training
    sample of each class; then all samples are fitted.  Never sees test data.  A fit depends on the samples alone,
    not on earlier fits, so it is the same whether or not earlier tasks were scored.
    """

    name = "joint_linear"
    Options = JointLinearSettings
    exemplar_free = False

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
        return self._table.decide(inputs @ weight + bias)

    def _fit(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        features, rows = self._memory.everything()
        samples = features.to(torch.float64)
        mean = samples.mean(dim=0)
        deviation = samples.std(dim=0, correction=0)
        deviation = torch.where(deviation > 1e-12, deviation, torch.ones_like(deviation))
        inputs = ((samples - mean) / deviation).to(torch.float32)
        start = None
        if self._options.penalty == "validation":
            self.penalty, start = self._choose(inputs, rows)
        else:
            self.penalty = float(self._options.penalty)
        weights = self._solve(Design.of(inputs), rows, self.penalty, FINAL_TOLERANCE, start)
        return mean, deviation, weights[:-1], weights[-1]

    def _choose(self, inputs: Tensor, targets: Tensor) -> tuple[float, Tensor | None]:
        """The penalty with the best accuracy on every fifth sample of each class, and the weights it gave.

        Goes from the largest to the smallest, each fit beginning where the last one ended, until accuracy falls.
        """
        rank = torch.zeros_like(targets)
        for row in range(len(self._table)):
            mine = torch.nonzero(targets == row).flatten()
            rank[mine] = torch.arange(len(mine))
        held = rank % 5 == 4
        if not bool(held.any()):
            return CANDIDATES[1], None
        best, chosen, kept = -1.0, CANDIDATES[0], None
        design, learned = Design.of(inputs[~held]), targets[~held]
        check, expected = inputs[held].to(torch.float64), targets[held]
        weights: Tensor | None = None
        for penalty in CANDIDATES:
            weights = self._solve(design, learned, penalty, CHOICE_TOLERANCE, weights)
            decided = (check @ weights[:-1] + weights[-1]).argmax(dim=1)
            accuracy = float((decided == expected).to(torch.float64).mean())
            if accuracy < best:
                break
            if accuracy > best:
                best, chosen, kept = accuracy, penalty, weights
        return chosen, kept

    def _solve(
        self,
        design: Design,
        targets: Tensor,
        penalty: float,
        tolerance: float,
        start: Tensor | None,
    ) -> Tensor:
        return fit(
            design,
            targets,
            classes=len(self._table),
            penalty=penalty,
            tolerance=tolerance,
            steps=self._options.iterations,
            start=start,
        )
