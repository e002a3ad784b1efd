"""What a check finds: good, worth knowing, or wrong; and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """One line of ``luca doctor``.

    Attributes:
        area: what was looked at, one word.
        status: "ok"; "note": works, but worth knowing; "wrong": a run would fail or be useless.
        found: what is the case.
        advice: what to do about it; "" when nothing needs doing.
    """

    area: str
    status: Status
    found: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain text by field name."""
        return asdict(self)


def ok(area: str, found: str) -> Finding:
    """All is well."""
    return Finding(area, "ok", found)


def note(area: str, found: str, advice: str = "") -> Finding:
    """It works, and is worth knowing."""
    return Finding(area, "note", found, advice)


def wrong(area: str, found: str, advice: str) -> Finding:
    """A run would fail."""
    return Finding(area, "wrong", found, advice)
