"""Settings of learning: objective, schedule, and the L1 term."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from typing_extensions import Self

from workers.modeling.luca_settings import Part
from workers.settings import Listed, Settings


class LearningSettings(Settings):
    """How a module is learned."""

    objective: Literal["local", "unified"] = Field(
        default="local",
        description="local: own classes only, tasks independent; unified: one head over all classes.",
    )
    epochs: PositiveInt = Field(
        default=20, le=1_000_000, description="Passes over a task's samples."
    )
    batch_size: PositiveInt = Field(default=48, description="Samples of one step, over all ranks.")
    learning_rate: PositiveFloat = Field(default=0.025, description="Rate of the first epoch.")
    minimum_learning_rate: NonNegativeFloat = Field(
        default=1e-8, description="Where the cosine schedule would end."
    )
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0, description="Momentum of SGD.")
    l1: NonNegativeFloat = Field(default=5e-4, description="Weight of the L1 term.")
    l1_mode: Literal["proximal", "subgradient"] = Field(
        default="proximal",
        description="proximal: soft-threshold step, exact zeros; subgradient: as published.",
    )
    l1_parts: Listed[Part] = Field(
        default=("weights",),
        description="Parts of a module under the L1 term: weights, biases, norm.",
    )
    initial_scale: PositiveFloat = Field(
        default=10.0,
        description="Scale of the cosines at the start of a local head; a unified one starts at 1.",
    )
    threshold: PositiveFloat | None = Field(
        default=None,
        description="After learning, parameters of l1_parts smaller than this become zero.",
    )
    threshold_tolerance: NonNegativeFloat = Field(
        default=0.003,
        description="Accuracy that thresholding may cost; it is halved until it costs no more.",
    )

    @model_validator(mode="after")
    def _schedule_falls(self) -> Self:
        if self.minimum_learning_rate > self.learning_rate:
            raise ValueError(
                f"minimum_learning_rate {self.minimum_learning_rate} is above learning_rate "
                f"{self.learning_rate}; the schedule falls from the second to the first"
            )
        return self

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch: cosine from learning_rate towards minimum_learning_rate."""
        span = self.learning_rate - self.minimum_learning_rate
        fall = 0.5 * (1.0 + math.cos(math.pi * epoch / self.epochs))
        return self.minimum_learning_rate + span * fall
