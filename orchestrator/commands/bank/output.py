"""How `luca bank` speaks: tables for people, one JSON object for machines."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from orchestrator.commands.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PIPE_WIDTH = 200
_UNITS = ((86400 * 365, "year"), (86400, "day"), (3600, "hour"), (60, "minute"))


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def console() -> Console:
    """Standard output as it is: as wide as the terminal, or wide enough for whole lines in a pipe."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> Table:
    """Rows under titles; columns in ``numbers`` to the right and, as those in ``whole``, never broken over lines."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    for title in titles:
        made.add_column(
            title,
            justify="right" if title in numbers else "left",
            no_wrap=title in numbers or title in whole,
            overflow="fold",
        )
    for row in rows:
        made.add_row(*(Text(shown(cell)) for cell in row))
    return made


def print_facts(out: Console, pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, a line each or more where values are long, without those that have no value."""
    from rich.text import Text

    told = [(printable(name), printable(str(v))) for name, v in pairs if v not in (None, "")]
    indent = max((len(name) for name, _ in told), default=0) + 2
    for name, value in told:
        lines = textwrap.wrap(value, max(20, out.width - indent)) or [""]
        text = Text(name.ljust(indent), style="dim")
        text.append(("\n" + " " * indent).join(lines), style="not dim")
        out.print(text, soft_wrap=True)


def shown(value: object) -> str:
    """A value as text for people: thousands separated, a list joined, nothing that moves the cursor."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value + 0.0:.6g}"  # no negative zero
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    return printable(str(value))


def when(created: str, now: datetime | None = None) -> str:
    """A time as local clock time and how long ago it was."""
    moment = _moment(created)
    if moment is None:
        return created
    return f"{moment.astimezone():%Y-%m-%d %H:%M} ({ago(created, now)})"


def ago(created: str, now: datetime | None = None) -> str:
    """How long ago a time was: "just now", "3 minutes ago", "2 days ago"."""
    moment = _moment(created)
    if moment is None:
        return created
    seconds = ((now or datetime.now(timezone.utc)) - moment).total_seconds()
    for size, unit in _UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def listed(title: str, values: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Facts for :func:`print_facts`: names and values below each other beside one title."""
    told = [(name, _spoken(value)) for name, value in values]
    width = max((len(name) for name, _ in told), default=0)
    lines = [f"{name:<{width}}  {value}" for name, value in told]
    return [(title if at == 0 else "", line) for at, line in enumerate(lines)]


def pairs(values: Iterable[tuple[str, Any]]) -> str:
    """Names with their values, as in "luca.flow tosca, learning.epochs 20"."""
    return ", ".join(f"{name} {_spoken(value)}" for name, value in values)


def _spoken(value: Any) -> str:
    nested = value is None or isinstance(value, bool | list | dict)
    return json.dumps(value) if nested else str(value)


def flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves of a JSON object under dotted names."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [
        leaf
        for key, item in value.items()
        for leaf in flat(item, f"{prefix}.{key}" if prefix else str(key))
    ]


def _moment(created: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
