"""The base of all settings: frozen pydantic models that refuse unknown keys.

Each component keeps its settings beside its own code; the experiment only composes them.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen group of settings.  Unknown keys and non-finite numbers are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )
