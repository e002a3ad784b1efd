"""One file describes a whole run: the experiment composes the settings of every component.

It is validated whole before anything starts; reading files and ``-o`` overrides is in experiment_files.py.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from orchestrator.tracking import TrackingSettings
from orchestrator.yaml_text import write_yaml
from pipelines.cluster import ClusterSettings
from pipelines.search import SearchSettings
from pipelines.stream import StreamSettings
from workers.modeling.backbone import BackboneSettings
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings
from workers.modeling.recipes import RECIPES
from workers.settings import Settings
from workers.storage.features import FeatureSettings

SAFE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


class GateSettings(Settings):
    """The quality a new version must reach, on the validation split, before it may be tagged."""

    tag: str = Field(default="production", pattern=SAFE_NAME)
    min_accuracy: float | None = Field(default=None, ge=0, le=1)
    max_forgetting: float | None = Field(default=None, ge=-1, le=1)

    @property
    def active(self) -> bool:
        """Whether any bound is set."""
        return self.min_accuracy is not None or self.max_forgetting is not None


class Experiment(Settings):
    """A whole run.  ``recipe`` names defaults for ``luca``, ``learning``, ``whitening`` and ``evaluation``;
    keys written out in the file or with ``-o`` override the recipe."""

    name: str = Field(pattern=SAFE_NAME, description="names the run and, by default, its bank")
    description: str = ""
    seed: int = Field(default=1993, ge=0, lt=2**31, description="class order and all randomness")
    storage: str = Field(default="luca-storage", description="a folder or a URI such as s3://...")
    bank: str | None = Field(default=None, pattern=SAFE_NAME, description="default: the name")
    recipe: str = Field(
        default="local", description="named defaults for luca, learning, whitening, evaluation"
    )
    known_tasks: Literal["check", "keep"] = Field(
        default="check",
        description=(
            "what to do when the samples of a task in the bank are others by now: check refuses, keep leaves the "
            "task as it was learned; its classes must be the same"
        ),
    )
    stream: StreamSettings
    backbone: BackboneSettings = BackboneSettings()
    features: FeatureSettings = FeatureSettings()
    luca: LucaSettings = LucaSettings()
    learning: LearningSettings = LearningSettings()
    whitening: Literal["none", "first_task"] = "none"
    evaluation: EvaluationSettings = EvaluationSettings()
    gate: GateSettings = GateSettings()
    search: SearchSettings = SearchSettings()
    tracking: TrackingSettings = TrackingSettings()
    cluster: ClusterSettings = ClusterSettings()

    @model_validator(mode="before")
    @classmethod
    def _recipe_under_explicit_keys(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        name = data.get("recipe", cls.model_fields["recipe"].default)
        if not isinstance(name, str) or name not in RECIPES:
            return data  # refused where its field is checked
        recipe = RECIPES[name]
        below: dict[str, Any] = {
            key: value for key, value in recipe.items() if key != "description"
        }
        return merge(below, dict(data))

    @field_validator("recipe", mode="before")
    @classmethod
    def _recipe_is_known(cls, name: Any) -> Any:
        if not isinstance(name, str) or name not in RECIPES:
            nearest = difflib.get_close_matches(str(name), RECIPES, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"unknown recipe: choose one of {', '.join(RECIPES)}{hint}")
        return name

    @field_validator("storage")
    @classmethod
    def _storage_is_named(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must name a folder or URI")
        return value

    @model_validator(mode="after")
    def _gate_needs_validation(self) -> Experiment:
        if self.gate.active and self.stream.validation_fraction <= 0:
            raise ValueError(
                "gate.min_accuracy and gate.max_forgetting are judged on validation samples, and "
                "stream.validation_fraction is 0: set it to 0.1, say"
            )
        return self

    @property
    def bank_name(self) -> str:
        """The bank this run writes."""
        return self.bank or self.name

    @property
    def scoring(self) -> EvaluationSettings:
        """How test samples are scored: ``evaluation``, with the task given to the router where the stream gives it."""
        return self.evaluation.with_tasks_given if self.stream.task_known else self.evaluation

    def learning_identity(self) -> dict[str, Any]:
        """Everything that decides what a bank learns, as JSON: a bank keeps it and refuses another."""
        return {
            "seed": self.seed,
            "luca": self.luca.model_dump(mode="json"),
            "learning": self.learning.model_dump(mode="json"),
            "whitening": self.whitening,
            "views": self.features.views,
            "feature_dtype": self.features.dtype,
            "statistics": {
                "granularity": self.evaluation.statistics.granularity,
                "random_features": self.evaluation.random_features,
            },
        }

    def prediction_defaults(self) -> dict[str, Any]:
        """What a prediction with this run's modules starts from, as JSON; noted in the bank's versions."""
        return {
            "evaluation": self.evaluation.model_dump(mode="json"),
            "weights": self.backbone.weights,
            "max_pixels": self.features.max_pixels,
        }

    @property
    def run_id(self) -> str:
        """The same experiment on the same bank continues the same run: a digest of what it measures."""
        identity = self.model_dump(
            mode="json", exclude={"cluster", "tracking", "search", "storage"}
        )
        text = json.dumps(identity, sort_keys=True, default=str)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def to_yaml(self) -> str:
        """The experiment written out whole, ready to be run again."""
        return write_yaml(self.model_dump(mode="json"))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``, key by key; lists and scalars replace."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged
