"""Joint logistic regression: the ceiling of a linear classifier on these features, trained on all classes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
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

    Minimises mean cross-entropy + penalty/2 |W|^2 by L-BFGS (scikit-learn).  The penalty is chosen on every
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
        inputs, targets = ((samples - mean) / deviation).numpy(), rows.numpy()
        if self._options.penalty == "validation":
            self.penalty = self._choose(inputs, targets)
        else:
            self.penalty = float(self._options.penalty)
        coefficients, bias = self._solve(inputs, targets, self.penalty)
        return mean, deviation, torch.from_numpy(coefficients), torch.from_numpy(bias)

    def _choose(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """The penalty with the best accuracy on every fifth sample of each class."""
        rank = np.zeros(len(targets), dtype=np.int64)
        for row in np.unique(targets):
            mine = np.flatnonzero(targets == row)
            rank[mine] = np.arange(len(mine))
        held = rank % 5 == 4
        if not held.any():
            return CANDIDATES[1]
        best, chosen = -1.0, CANDIDATES[0]
        for penalty in CANDIDATES:
            weight, bias = self._solve(inputs[~held], targets[~held], penalty)
            accuracy = float(
                np.mean(np.argmax(inputs[held] @ weight.T + bias, axis=1) == targets[held])
            )
            if accuracy > best:
                best, chosen = accuracy, penalty
        return chosen

    def _solve(
        self, inputs: np.ndarray, targets: np.ndarray, penalty: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients [C, d] and biases [C]; a class that is absent gets a bias of -inf."""
        import warnings

        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

        classes = len(self._table)
        weight, bias = np.zeros((classes, inputs.shape[1])), np.full(classes, -np.inf)
        present = np.unique(targets)
        if len(present) == 1:
            bias[present] = 0.0
            return weight, bias
        model = LogisticRegression(
            C=1.0 / (penalty * len(targets)), max_iter=self._options.iterations, tol=1e-4
        )
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(inputs, targets)
        if len(present) == 2:
            half = model.coef_[0] / 2
            weight[present] = np.stack([-half, half])
            bias[present] = np.array([-0.5, 0.5]) * model.intercept_[0]
        else:
            weight[present], bias[present] = model.coef_, model.intercept_
        return weight, bias
