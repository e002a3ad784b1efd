"""What the user talks to, on the driver: command line, experiment, driver, trackers, reports.

From Python: ``orchestrator.open_bank(storage, name)``, see api.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.api import OpenBank, open_bank

__all__ = ["OpenBank", "open_bank"]


def __getattr__(name: str) -> Any:
    """The API, imported when it is first asked for, so that the command line starts quickly."""
    if name in __all__:
        from orchestrator import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
