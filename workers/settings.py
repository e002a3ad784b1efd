"""The base of all settings: frozen pydantic models that refuse unknown keys.

Each component keeps its settings beside its own code; the experiment only composes them.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Strict, field_validator

_Item = TypeVar("_Item")

Listed = Annotated[tuple[_Item, ...], Strict(False)]
"""Several values, which YAML and JSON write as a list."""

LARGEST_COUNT = 2**53
"""Whole numbers up to here are the same in JSON, in float64 and in every tensor library."""

LARGEST_REAL = 1e30
"""Numbers up to here, and down to one over it, leave float32 room to calculate with them."""


class Settings(BaseModel):
    """A frozen group of settings.

    Unknown keys and non-finite numbers are refused, and so are values of another type: YAML has types of its own, so
    ``true`` where a number is expected, or ``"3"``, is a mistake and not a way of writing 1 or 3.  Whole numbers
    serve as real ones.  Numbers that no tensor can count to, or float32 not calculate with, are refused as well.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, strict=True
    )

    @field_validator("*")
    @classmethod
    def _can_be_calculated_with(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value
        if isinstance(value, int) and abs(value) > LARGEST_COUNT:
            raise ValueError(f"whole numbers go up to {LARGEST_COUNT}")
        if abs(value) > LARGEST_REAL:
            raise ValueError(f"numbers go up to {LARGEST_REAL:g}")
        if 0 < abs(value) < 1 / LARGEST_REAL:
            raise ValueError(f"numbers other than 0 go down to {1 / LARGEST_REAL:g}")
        return value
