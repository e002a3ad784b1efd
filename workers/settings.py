"""The base of all settings: frozen pydantic models that refuse unknown keys.

Each component keeps its settings beside its own code; the experiment only composes them.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Strict

_Item = TypeVar("_Item")

Listed = Annotated[tuple[_Item, ...], Strict(False)]
"""Several values, which YAML and JSON write as a list."""


class Settings(BaseModel):
    """A frozen group of settings.

    Unknown keys and non-finite numbers are refused, and so are values of another type: YAML has types of its own, so
    ``true`` where a number is expected, or ``"3"``, is a mistake and not a way of writing 1 or 3.  Whole numbers
    serve as real ones.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, strict=True
    )
