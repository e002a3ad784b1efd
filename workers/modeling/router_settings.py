"""Settings of the routers, and what is known of one before it is fitted.  Free of torch: the command line reads it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from workers.settings import Settings

Combination = Literal["hard", "joint", "product", "refine"]
"""How a router's belief and the modules' are joined; combining.py has the formulas."""

Prior = Literal["uniform", "counts"]

MOST_RANDOM_FEATURES = 100_000
"""Their Gram matrix is square: 80 GB at this many."""


class RouterSettings(Settings):
    """Settings of one router.

    Attributes:
        order_dependent: True when a prediction depends on the other samples of its batch.
        upper_bound: True when it uses what a deployed model cannot know.
    """

    order_dependent: ClassVar[bool] = False
    upper_bound: ClassVar[bool] = False


class LdaRouterSettings(RouterSettings):
    """Settings of `LdaRouter`."""

    shrinkage: Literal["oas"] | Annotated[float, Field(ge=0, le=1)] = Field(
        "oas",
        description="Weight of the identity in the covariance: closed form, or fixed in [0, 1].",
    )
    prior: Prior = Field(
        "uniform",
        description="Prior of a slot: the same for all, or its share of training samples.",
    )
    temperature: PositiveFloat = Field(
        4.0,
        description=(
            "Divides the log-likelihoods. Classes are heavier-tailed than Gaussians, so 1 is far too "
            "sure; 4 gave the best calibrated posteriors on the validation splits of four streams."
        ),
    )


class RidgeRouterSettings(RouterSettings):
    """Settings of `RidgeRouter`."""

    random_features: NonNegativeInt = Field(
        0,
        le=MOST_RANDOM_FEATURES,
        description=(
            "Number of random ReLU features (2000, 5000, 8000, ...); 0 regresses on the features "
            "themselves. Collected while tasks are learned; costs 4 x its square bytes a task."
        ),
    )
    penalty: Literal["gcv"] | PositiveFloat = Field(
        "gcv",
        description=(
            "Lambda: chosen by generalised cross-validation on the training sums, or fixed in units "
            "of the mean eigenvalue of the Gram matrix."
        ),
    )
    temperature: PositiveFloat = Field(
        0.1,
        description=(
            "Divides the regression's scores, which estimate indicators between 0 and 1; the default "
            "gave the best calibrated posteriors on the validation splits of four streams."
        ),
    )


class LdaRidgeRouterSettings(RouterSettings):
    """Settings of `LdaRidgeRouter`."""

    lda: LdaRouterSettings = Field(
        default=LdaRouterSettings(), description="Settings of its Gaussian half."
    )
    ridge: RidgeRouterSettings = Field(
        default=RidgeRouterSettings(), description="Settings of its regression half."
    )


class PrototypeRouterSettings(RouterSettings):
    """Settings of `PrototypeRouter`."""

    temperature: PositiveFloat = Field(0.05, description="Divides the cosines.")


class EntropyRouterSettings(RouterSettings):
    """Settings of `EntropyRouter`."""

    temperature: PositiveFloat = Field(
        0.1, description="Divides normalised entropies where a probability of tasks is asked for."
    )


class BatchEntropyRouterSettings(RouterSettings):
    """Settings of `BatchEntropyRouter`."""

    order_dependent: ClassVar[bool] = True

    batch_size: PositiveInt = Field(48, description="Samples that share one module.")
    temperature: PositiveFloat = Field(
        0.1, description="Divides normalised entropies where a probability of tasks is asked for."
    )


class ShuffledBatchEntropyRouterSettings(BatchEntropyRouterSettings):
    """Settings of `ShuffledBatchEntropyRouter`."""

    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the permutation of the test set.")


class OracleRouterSettings(RouterSettings):
    """Settings of `OracleRouter`."""

    upper_bound: ClassVar[bool] = True

    own_classes_only: bool = Field(
        False,
        description=(
            "Unified banks: decide among the classes of the given task only (task-incremental "
            "evaluation) instead of among all classes seen."
        ),
    )


ROUTER_SETTINGS: dict[str, type[RouterSettings]] = {
    "lda": LdaRouterSettings,
    "ridge": RidgeRouterSettings,
    "lda_ridge": LdaRidgeRouterSettings,
    "prototype": PrototypeRouterSettings,
    "entropy": EntropyRouterSettings,
    "batch_entropy": BatchEntropyRouterSettings,
    "batch_entropy_shuffled": ShuffledBatchEntropyRouterSettings,
    "oracle": OracleRouterSettings,
}
"""By the routers' names; ``ROUTERS`` has the routers themselves."""
