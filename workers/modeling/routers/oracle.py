"""Routing by the true task: an upper bound, never a result, except where task ids are given by the scenario."""

from __future__ import annotations

import torch

from workers.errors import DataError
from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import Routing
from workers.modeling.router_settings import OracleRouterSettings
from workers.modeling.routers.base import Router, RouterInput


class OracleRouter(Router):
    """Gives every sample to the module of its true task."""

    name = "oracle"
    Options = OracleRouterSettings
    evidence = "task ids"

    def __init__(self, bank: BankTensors, options: OracleRouterSettings) -> None:
        self._bank = bank
        self._own = options.own_classes_only

    @classmethod
    def fit(cls, bank: BankTensors, options: OracleRouterSettings) -> OracleRouter:
        """Needs nothing from the bank but the number of its tasks."""
        return cls(bank, options)

    def route(self, batch: RouterInput) -> Routing:
        """All mass on the true task.

        Raises:
            DataError: Task ids are missing or name a task the bank does not hold.
        """
        tasks = len(self._bank.tasks)
        ids = batch.task_ids
        if ids is None:
            raise DataError(
                "router 'oracle' needs the task of every sample (task_ids); use it where the stream "
                "gives them, or choose another router."
            )
        if ids.shape != (batch.features.shape[0],) or bool(((ids < 0) | (ids >= tasks)).any()):
            raise DataError(
                f"router 'oracle' was given task ids outside 0..{tasks - 1} or not one a sample; "
                "score only samples of tasks that the bank holds."
            )
        chosen = torch.nn.functional.one_hot(ids, tasks).to(torch.float64).log()
        return Routing(task_log_probs=chosen, own_classes_only=self._own)
