"""Sequential fine-tuning of one linear classifier: what happens when nothing is done about forgetting."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from workers.modeling.baseline_settings import SequentialLinearSettings
from workers.modeling.baselines.base import (
    Baseline,
    BaselineContext,
    BaselinePrediction,
    ClassTable,
    grow,
)


class SequentialLinear(Baseline):
    """Softmax regression over all classes seen, trained by SGD with momentum 0.9 on one task after another.

    Features are divided by the root mean square norm of the first task's, so that one learning rate fits
    every backbone.  A lower bound.
    """

    name = "sequential_linear"
    Options = SequentialLinearSettings

    def __init__(self, context: BaselineContext, options: SequentialLinearSettings) -> None:
        self._table = ClassTable(context.width)
        self._options = options
        self._seed = context.seed
        self._tasks = 0
        self._norm = 0.0
        self._weight = torch.zeros(0, context.width + 1)

    @classmethod
    def create(
        cls, context: BaselineContext, options: SequentialLinearSettings
    ) -> SequentialLinear:
        """An untrained baseline."""
        return cls(context, options)

    def observe(self, features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
        """Goes on training the one classifier on this task's samples alone."""
        samples, rows = self._table.enter(features, labels, classes)
        self._weight = grow(self._weight, len(self._table))
        if self._norm == 0.0:
            self._norm = float(samples.square().sum(dim=1).mean().sqrt()) or 1.0
        inputs = self._inputs(samples)
        targets = torch.nn.functional.one_hot(rows, len(self._table)).to(torch.float32)
        shuffle = np.random.RandomState((self._seed * 1_000_003 + self._tasks) % 2**32)
        self._tasks += 1
        weight, velocity = self._weight, torch.zeros_like(self._weight)
        for epoch in range(self._options.epochs):
            rate = self._options.learning_rate
            rate *= 0.5 * (1 + math.cos(math.pi * epoch / self._options.epochs))
            order = torch.from_numpy(shuffle.permutation(len(inputs)))
            for batch in torch.split(order, self._options.batch_size):
                part = inputs[batch]
                error = torch.softmax(part @ weight.T, dim=1) - targets[batch]
                velocity.mul_(0.9).add_(error.T @ part, alpha=1 / len(batch))
                weight.sub_(velocity, alpha=rate)

    def predict(self, features: Tensor) -> BaselinePrediction:
        """Decides among all classes seen so far."""
        self._table.need_classes()
        return self._table.decide(self._inputs(self._table.check(features)) @ self._weight.T)

    def _inputs(self, features: Tensor) -> Tensor:
        scaled = features * (math.sqrt(self._table.width) / self._norm)
        return torch.cat([scaled, torch.ones(len(features), 1)], dim=1)
