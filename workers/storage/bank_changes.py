"""What differs between two JSON values, as sentences a person can act on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workers.storage.bank_json import JsonObject, canonical

_SHOWN = 120


@dataclass(frozen=True)
class Change:
    """One field that differs; ``path`` is dotted.  A field that is missing on one side is None there."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if isinstance(self.before, list) and isinstance(self.after, list):
            return f"{self.path}: {_list_change(self.before, self.after)}"
        return f"{self.path}: {_short(self.before)} became {_short(self.after)}"

    def to_json(self) -> JsonObject:
        """For machines."""
        return {"path": self.path, "before": self.before, "after": self.after}


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> tuple[Change, ...]:
    """Every leaf that differs between two JSON objects, by path; lists are leaves."""
    return tuple(_walk(dict(before), dict(after), prefix))


def sentences(found: tuple[Change, ...], limit: int = 10) -> str:
    """The changes as one line, the first few when there are many."""
    shown = "; ".join(str(change) for change in found[:limit])
    rest = len(found) - limit
    return f"{shown}; and {rest} more" if rest > 0 else shown


def _walk(before: JsonObject, after: JsonObject, prefix: str) -> Iterator[Change]:
    for key in sorted(set(before) | set(after)):
        path = f"{prefix}.{key}" if prefix else key
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _walk(old, new, path)
        elif canonical(old) != canonical(new):
            yield Change(path, old, new)


def _list_change(before: list[Any], after: list[Any]) -> str:
    old, new = [_short(item) for item in before], [_short(item) for item in after]
    had, has = set(old), set(new)
    gone = [item for item in old if item not in has]
    added = [item for item in new if item not in had]
    if not gone and not added:
        return "the same entries in another order or number"
    parts = [f"without {_few(gone)}"] if gone else []
    return " and ".join(parts + ([f"with new {_few(added)}"] if added else []))


def _few(items: list[str]) -> str:
    return ", ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else canonical(value).decode()
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
