"""What the faults of a filesystem mean to a user: one sentence each, with what would help."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from workers.errors import StorageError, first_line

Verb = Literal["read", "write", "delete", "list"]

_PAST: dict[Verb, str] = {
    "read": "read",
    "write": "written",
    "delete": "deleted",
    "list": "listed",
}


IN_STORAGE = "point `storage` elsewhere"
"""What helps where a place in the storage cannot be used."""

IN_FOLDER = "name a file elsewhere"
"""What helps where a file that the user named cannot be written."""

IN_DATA = "name data elsewhere"
"""What helps where data that the user named cannot be read."""


@contextmanager
def explained(verb: Verb, what: Callable[[], str], *, instead: str = IN_STORAGE) -> Iterator[None]:
    """Turns what ``os`` and pyarrow raise in the body into a StorageError.

    Args:
        verb: what is done there.
        what: names the file; called only when something went wrong.
        instead: what else a user can do when the place cannot be used.
    """
    arrow = sys.modules.get("pyarrow")  # while nobody has imported it, it raises nothing
    faults: tuple[type[BaseException], ...] = (OSError,)
    if arrow is not None:
        faults = (OSError, arrow.ArrowException)
    try:
        yield
    except faults as error:
        raise fault(error, verb, what(), instead=instead) from error


def fault(
    error: BaseException, verb: Verb, what: str, *, instead: str = IN_STORAGE
) -> StorageError:
    """The sentence for what ``os`` or pyarrow raised; arguments as of :func:`explained`."""
    return StorageError(
        f"{what} cannot be {_PAST[verb]}: {reason(error)}{remedy(error, verb, instead)}"
    )


def reason(error: BaseException) -> str:
    """What went wrong, in a few words without a full stop."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return first_line(error)


def remedy(error: BaseException, verb: Verb, instead: str) -> str:
    """What would help, to be put behind the sentence; empty where nobody knows."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"; free some space or {instead}, then run the same command again"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"; this user may not {verb} here: change the permissions or {instead}"
    text = str(error)
    if "ACCESS_DENIED" in text or "redential" in text:
        return (
            "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or an AWS profile) for this storage"
        )
    return ""
