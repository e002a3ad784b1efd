"""Plain text for people: aligned tables, sizes and shortened lists that read the same in a terminal, a pipe or a log."""

from __future__ import annotations

from collections.abc import Sequence

from workers.wording import plural

__all__ = ["aligned", "human_bytes", "plural", "printable", "shortened"]

_UNITS = ("B", "KB", "MB", "GB", "TB")


def aligned(titles: Sequence[str], rows: Sequence[Sequence[object]], *, indent: str = "") -> str:
    """Rows under titles; columns of whole numbers to the right, the rest to the left."""
    numeric = [
        bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(titles))
    ]
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    lines = []
    for line in (list(titles), *cells):
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        lines.append(indent + "  ".join(padded).rstrip())
    return "\n".join(lines)


def human_bytes(count: int) -> str:
    """Bytes with a unit of powers of 1000: 3.7 MB."""
    value = float(count)
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def shortened(names: Sequence[str], *, room: int = 60) -> str:
    """Names joined by commas, as many as fit, then how many more there are."""
    shown: list[str] = []
    used = 0
    for name in map(printable, names):
        used += len(name) + 2
        if shown and used > room:
            return f"{', '.join(shown)} and {len(names) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)


def printable(text: str) -> str:
    """Text from data without control characters, which could move a terminal's cursor."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
