"""Joint LuCA: one module learned on all classes at once, an upper bound without routing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.errors import SettingsError
from workers.modeling import luca
from workers.modeling.baseline_settings import JointLucaSettings
from workers.modeling.baselines.base import (
    Baseline,
    BaselineContext,
    BaselinePrediction,
    ClassTable,
)
from workers.modeling.baselines.memory import Memory
from workers.modeling.heads import cosine_logits


class JointLuca(Baseline):
    """One LuCA module with a cosine head over all classes, objective "local", on all samples seen."""

    name = "joint_luca"
    Options = JointLucaSettings
    exemplar_free = False

    def __init__(self, context: BaselineContext) -> None:
        if context.luca is None or context.learning is None:
            raise SettingsError(
                "baseline 'joint_luca' needs the luca and learning settings of the experiment."
            )
        self._luca = context.luca
        self._learning = context.learning
        self._seed = context.seed
        self._table = ClassTable(context.width)
        self._memory = Memory(self._table)
        self._fitted: tuple[luca.Parameters, Tensor, Tensor] | None = None

    @classmethod
    def create(cls, context: BaselineContext, options: JointLucaSettings) -> JointLuca:
        """An untrained baseline."""
        del options  # they say when it is scored, not how it learns
        return cls(context)

    def observe(self, features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
        """Keeps the task's samples; learning waits until a prediction is asked for."""
        self._memory.add(features, labels, classes)
        self._fitted = None

    def predict(self, features: Tensor) -> BaselinePrediction:
        """Decides among all classes seen so far."""
        self._table.need_classes()
        rows = self._table.check(features)
        if self._fitted is None:
            self._fitted = self._fit()
        module, head, scale = self._fitted
        with torch.inference_mode():
            logits = [
                cosine_logits(luca.apply(module, part, self._luca.flow), head, scale)
                for part in torch.split(rows, 1024)
            ]
        return self._table.decide(torch.cat(logits))

    def _fit(self) -> tuple[luca.Parameters, Tensor, Tensor]:
        from workers.modeling.learner import learn_local

        features, rows = self._memory.everything()
        learned = learn_local(
            [features],
            rows,
            classes=len(self._table),
            luca=self._luca,
            learning=self._learning,
            seed=self._seed,
            task_key="joint_luca",
        )
        assert learned.head is not None
        return learned.module, learned.head, learned.scale
