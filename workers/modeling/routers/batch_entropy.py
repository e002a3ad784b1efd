"""The published evaluation: one module for a whole batch, chosen by mean entropy.

It is kept only for comparison with published figures.  In a test set ordered by class the neighbours of a
sample reveal its task; the shuffled variant shows what is left of the figure without that.
"""

from __future__ import annotations

from typing import Any

import torch

from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import Routing
from workers.modeling.router_settings import (
    BatchEntropyRouterSettings,
    ShuffledBatchEntropyRouterSettings,
)
from workers.modeling.routers.base import Router, RouterInput, task_softmax


class BatchEntropyRouter(Router):
    """Mean normalised entropy over batches of consecutive samples, in the given order of the test set."""

    name = "batch_entropy"
    Options = BatchEntropyRouterSettings
    evidence = "entropies"
    combination = "hard"

    def __init__(
        self, options: BatchEntropyRouterSettings, shuffle_seed: int | None = None
    ) -> None:
        self._temperature = options.temperature
        self.batch_size: int = options.batch_size
        self.shuffle_seed = shuffle_seed

    @classmethod
    def fit(cls, bank: BankTensors, options: Any) -> BatchEntropyRouter:  # noqa: ARG003
        """Needs nothing from the bank but its modules."""
        return cls(options)

    def route(self, batch: RouterInput) -> Routing:
        """The same belief for all samples of each consecutive batch; the last may be shorter."""
        assert batch.entropies is not None
        means = [
            part.mean(dim=0, keepdim=True).expand_as(part)
            for part in torch.split(batch.entropies, self.batch_size)
        ]
        return task_softmax(-torch.cat(means) / self._temperature)


class ShuffledBatchEntropyRouter(BatchEntropyRouter):
    """The same rule on the same test set after one fixed permutation."""

    name = "batch_entropy_shuffled"
    Options = ShuffledBatchEntropyRouterSettings

    @classmethod
    def fit(cls, bank: BankTensors, options: Any) -> ShuffledBatchEntropyRouter:  # noqa: ARG003
        """Needs nothing from the bank but its modules."""
        return cls(options, options.seed)
