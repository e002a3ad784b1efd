"""How `luca bank` speaks: tables for people, one JSON object for machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from orchestrator.commands.text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
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


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: str = "") -> Table:
    """Rows under titles; the columns named in ``numbers`` (space-separated) to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    right = set(numbers.split())
    for title in titles:
        made.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(shown(cell)) for cell in row))
    return made


def facts(pairs: Iterable[tuple[str, object]]) -> RenderableType:
    """Names and values in two columns, without those that have no value."""
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value not in (None, ""):
            made.add_row(Text(name, style="dim"), Text(shown(value)))
    return made


def shown(value: object) -> str:
    """A value as text for people: thousands separated, a list joined, nothing that moves the cursor."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
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
