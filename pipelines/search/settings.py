"""Settings of a sweep (key ``search`` of an experiment): what is searched, how, and how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    JsonValue,
    NonNegativeFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from workers.settings import Listed, Settings

DEFAULT_TRIALS = 24
"""Trials of a random or Optuna sweep that says no number; a grid has as many as its points."""


class Range(Settings):
    """Numbers from ``low`` to ``high``, both included.  Whole bounds (and steps) give whole numbers."""

    low: int | float
    high: int | float
    log: bool = Field(default=False, description="Draw evenly in the logarithm.")
    step: int | float | None = Field(default=None, description="Distance between neighbours.")
    points: int = Field(default=5, ge=2, description="Points that method 'grid' takes from it.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} must be below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low is {self.low}, and a logarithmic range needs it above 0")
        if self.log and self.step is not None:
            raise ValueError("a range is either logarithmic or has a step; leave one out")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step is {self.step} and must be above 0")
        return self

    @property
    def whole(self) -> bool:
        """Whether its values are integers."""
        step = 1 if self.step is None else self.step
        return all(isinstance(value, int) for value in (self.low, self.high, step))


Domain = Range | Listed[JsonValue]
"""What a key may be: a range of numbers, or a list of values."""

_RANGE_KEYS = frozenset(Range.model_fields)


class SearchSettings(Settings):
    """What ``luca sweep`` does.  Test samples play no part: trials are judged on validation samples."""

    trials: PositiveInt | None = Field(
        default=None,
        description=f"Trials, the published recipe included; none: {DEFAULT_TRIALS}, or the whole grid.",
    )
    space: dict[str, Domain] | None = Field(
        default=None,
        description="By dotted key of the experiment: a list of values, or {low, high, log, step}. "
        "None: l1, ranks and learning rate.",
    )
    method: Literal["optuna", "random", "grid"] = Field(
        default="optuna", description="How settings are proposed; optuna: a TPE sampler."
    )
    objective: Literal["pareto", "accuracy"] = Field(
        default="pareto",
        description="pareto: validation accuracy up and non-zero parameters down; accuracy: that alone.",
    )
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.2,
        description="Held out of training for the sweep when stream.validation_fraction is 0.",
    )
    repeats: PositiveInt = Field(
        default=1, description="Times that every trial learns the stream; the mean counts."
    )
    repeat_over: Literal["class_orders", "seeds"] = Field(
        default="class_orders",
        description="What differs between repeats. class_orders: the experiment's seed, and with it the "
        "order of classes, the held-out samples and learning; seeds: the randomness of learning alone.",
    )
    early_stopping: bool = Field(
        default=True, description="Stop poor trials after some tasks of the stream (ASHA)."
    )
    grace_tasks: PositiveInt | None = Field(
        default=None,
        description="Tasks every trial may learn before it can be stopped; none: a sixth, at least 3.",
    )
    reduction_factor: Annotated[float, Field(gt=1)] = Field(
        default=3.0, description="One of so many trials goes on at each rung; rungs grow by it."
    )
    stop_margin: NonNegativeFloat = Field(
        default=0.01, description="How far below the cut of a rung a trial may be and still go on."
    )
    decade_worth: NonNegativeFloat = Field(
        default=0.01,
        description="With objective pareto, the accuracy that ten times fewer non-zero parameters make "
        "up for when trials are stopped early.",
    )
    tolerance: NonNegativeFloat = Field(
        default=0.003,
        description="Accuracy below the best at which a smaller trial still counts as equal to it.",
    )
    max_concurrent: PositiveInt | None = Field(
        default=None, description="Trials at a time; none: as many as the cluster has CPUs for."
    )
    retries: Annotated[int, Field(ge=0)] = Field(
        default=2, description="Times a trial is begun again whose process was lost."
    )

    @field_validator("space", mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        flat = dict(_leaves(value))
        if not flat:
            raise ValueError("name at least one key, or leave space out for the defaults")
        return flat

    @field_validator("space")
    @classmethod
    def _no_empty_list(cls, value: dict[str, Domain] | None) -> dict[str, Domain] | None:
        for key, domain in (value or {}).items():
            if isinstance(domain, tuple) and not domain:
                raise ValueError(f"{key} has an empty list of values")
        return value


def _leaves(value: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted keys and domains of a mapping that may be nested, as ``-o search.space.learning.l1=`` makes it."""
    found: list[tuple[str, Any]] = []
    for key, domain in value.items():
        path = f"{prefix}{key}"
        if isinstance(domain, Mapping) and not {str(k) for k in domain} <= _RANGE_KEYS:
            if {"low", "high"} & {str(k) for k in domain}:
                unknown = sorted({str(k) for k in domain} - _RANGE_KEYS)
                raise ValueError(
                    f"{path}: a range has no {unknown[0]!r}; it has {', '.join(Range.model_fields)}"
                )
            found += _leaves(domain, f"{path}.")
        elif isinstance(domain, Mapping):
            found.append((path, _range(path, domain)))
        elif isinstance(domain, (list, tuple, Range)):
            found.append((path, domain))
        else:
            raise ValueError(
                f"{path}: give a list of values or a range such as {{low: 1e-5, high: 1e-2, log: true}}, "
                f"not {domain!r}"
            )
    return found


def _range(path: str, data: Mapping[Any, Any]) -> Range:
    try:
        return Range.model_validate(dict(data))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            message = f"a range needs {problem['loc'][0]!r}"
        elif problem["type"] in ("int_type", "float_type"):
            message = f"{problem['loc'][0]} should be a number, found {problem['input']!r}"
        elif problem["loc"]:
            message = f"{problem['loc'][0]}: {message.lower()}, found {problem['input']!r}"
        raise ValueError(f"{path}: {message}") from None
