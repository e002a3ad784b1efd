"""Routing by the entropy of the modules' own predictions: the published rule, one sample at a time."""

from __future__ import annotations

from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import Routing
from workers.modeling.router_settings import EntropyRouterSettings
from workers.modeling.routers.base import Router, RouterInput, task_softmax


class EntropyRouter(Router):
    """The module that is surest of itself wins: q(t|x) = softmax(-H_t(x) / temperature).

    H is -sum p log(p + 1e-9) over the classes a module decides among ("Unlocking [CLS] Features for
    Continual Post-Training", arXiv 2502.14762), divided by log of their number: modules of tasks with
    more classes would otherwise never win.  With a unified head that is the same divisor for all, so
    the choice is exactly the published one.  The chosen module decides alone, as published, whatever
    combination other routers use.  See `workers.modeling.entropies` for tasks of one class.
    """

    name = "entropy"
    Options = EntropyRouterSettings
    evidence = "entropies"
    combination = "hard"

    def __init__(self, options: EntropyRouterSettings) -> None:
        self._temperature = options.temperature

    @classmethod
    def fit(cls, bank: BankTensors, options: EntropyRouterSettings) -> EntropyRouter:  # noqa: ARG003
        """Needs nothing from the bank but its modules."""
        return cls(options)

    def route(self, batch: RouterInput) -> Routing:
        """Belief over tasks from the entropies of the batch."""
        assert batch.entropies is not None
        return task_softmax(-batch.entropies / self._temperature)
