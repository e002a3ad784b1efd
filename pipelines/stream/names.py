"""Names that a user wrote, checked against those the data have."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from workers.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def check_names(
    field: str, given: Iterable[str], known: Sequence[str], *, what: str, advice: str = ""
) -> None:
    """Raise a SettingsError for the first name that the data do not have, with the nearest ones that they do.

    ``advice`` says what else may have happened, where it was no slip of the pen.
    """
    have = set(known)
    for name in given:
        if name not in have:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {some(known)}"
            more = f" ({advice})" if advice else ""
            raise SettingsError(f"{field}: the data have no {what} {name!r}; {hint}{more}")


def some(names: Sequence[str], limit: int = 6) -> str:
    """The first few names, quoted, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
