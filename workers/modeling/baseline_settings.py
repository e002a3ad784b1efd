"""Settings of the baselines, and what kind of method each is.  Free of torch: the command line reads it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from workers.modeling.router_settings import MOST_RANDOM_FEATURES
from workers.settings import Settings

Cadence = Literal["every_task", "final"]
Bound = Literal["upper", "lower"]


class BaselineSettings(Settings):
    """Settings of one baseline.

    Attributes:
        bound: "upper" or "lower" for bounds that are no competitors, else None.
        learns_modules: Whether it learns LuCA modules, as the experiment's luca and learning settings say.
    """

    bound: ClassVar[Bound | None] = None
    learns_modules: ClassVar[bool] = False

    @property
    def final_only(self) -> bool:
        """Whether it is scored after the last task only."""
        return False


class CostlyBaselineSettings(BaselineSettings):
    """Settings of a baseline that may wait for the last task."""

    cadence: Cadence = "every_task"

    @property
    def final_only(self) -> bool:
        """Whether it is scored after the last task only."""
        return self.cadence == "final"


class SimpleCilSettings(BaselineSettings):
    """Settings of `SimpleCil`."""

    temperature: PositiveFloat = Field(
        0.05, description="Divides cosines where a probability is asked for."
    )


class SldaSettings(BaselineSettings):
    """Settings of `Slda`; its shrinkage is in closed form."""

    temperature: PositiveFloat = Field(
        4.0, description="Divides log-likelihoods where a probability is asked for."
    )


class RanPacSettings(BaselineSettings):
    """Settings of `RanPac`."""

    random_features: PositiveInt = Field(
        2000,
        le=MOST_RANDOM_FEATURES,
        description="Number of random ReLU features; the published size is 10,000.",
    )
    penalty: Literal["gcv"] | PositiveFloat = Field(
        "gcv",
        description=(
            "Lambda: chosen by generalised cross-validation on the training sums, or fixed in units "
            "of the mean eigenvalue of the Gram matrix."
        ),
    )


class FeCamSettings(BaselineSettings):
    """Settings of `FeCam`."""

    diagonal_shrinkage: PositiveFloat = Field(
        1.0, description="gamma_1: share of the mean variance that is added to the diagonal."
    )
    off_diagonal_shrinkage: NonNegativeFloat = Field(
        1.0, description="gamma_2: share of the mean covariance that is added off the diagonal."
    )


class SequentialLinearSettings(BaselineSettings):
    """Settings of `SequentialLinear`."""

    bound: ClassVar[Bound | None] = "lower"

    epochs: PositiveInt = Field(20, description="Passes over a task's samples.")
    batch_size: PositiveInt = Field(48, description="Samples a step.")
    learning_rate: PositiveFloat = Field(
        0.025, description="First learning rate; it falls to zero along a half cosine, a task."
    )


class JointLinearSettings(CostlyBaselineSettings):
    """Settings of `JointLinear`."""

    bound: ClassVar[Bound | None] = "upper"

    penalty: Literal["validation"] | PositiveFloat = Field(
        "validation",
        description=(
            "L2 penalty per sample: chosen on a fifth of the training samples held out, or fixed."
        ),
    )
    iterations: PositiveInt = Field(200, description="Most Newton steps of a fit.")
    cadence: Cadence = Field(
        "every_task",
        description="Fitted after every task, or after the last one only (large streams).",
    )


class JointLucaSettings(CostlyBaselineSettings):
    """Settings of `JointLuca`, which learns as the experiment's modules do."""

    bound: ClassVar[Bound | None] = "upper"
    learns_modules: ClassVar[bool] = True

    cadence: Cadence = Field(
        "final",
        description="Learned after the last task only, or after every task (costs as many learnings).",
    )


BASELINE_SETTINGS: dict[str, type[BaselineSettings]] = {
    "simplecil": SimpleCilSettings,
    "slda": SldaSettings,
    "ranpac": RanPacSettings,
    "fecam": FeCamSettings,
    "sequential_linear": SequentialLinearSettings,
    "joint_linear": JointLinearSettings,
    "joint_luca": JointLucaSettings,
}
"""By the baselines' names; ``BASELINES`` has the baselines themselves."""
