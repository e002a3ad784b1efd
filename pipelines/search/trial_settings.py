"""What decides the result of a trial on a given stream."""

from __future__ import annotations

from typing import Literal

from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings
from workers.settings import Settings


class TrialSettings(Settings):
    """The settings of an experiment that a trial may vary."""

    luca: LucaSettings
    learning: LearningSettings
    whitening: Literal["none", "first_task"]
    evaluation: EvaluationSettings

    @property
    def router(self) -> str:
        """The router that a trial is judged by: the first one named."""
        return self.evaluation.routers[0]
