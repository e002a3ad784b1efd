"""What the faults of a filesystem mean to a user: one sentence each, with what would help."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from workers.errors import StorageError

Verb = Literal["read", "write", "delete", "list"]

_PAST: dict[Verb, str] = {
    "read": "read",
    "write": "written",
    "delete": "deleted",
    "list": "listed",
}


@contextmanager
def explained(verb: Verb, what: Callable[[], str]) -> Iterator[None]:
    """Turns what ``os`` and pyarrow raise in the body into a StorageError.

    Args:
        verb: what is done there.
        what: names the file; called only when something went wrong.
    """
    arrow = sys.modules.get("pyarrow")  # while nobody has imported it, it raises nothing
    faults: tuple[type[BaseException], ...] = (OSError,)
    if arrow is not None:
        faults = (OSError, arrow.ArrowException)
    try:
        yield
    except faults as error:
        raise StorageError(
            f"{what()} cannot be {_PAST[verb]}: {reason(error)}{_remedy(error, verb)}"
        ) from error


def reason(error: BaseException) -> str:
    """What went wrong, in a few words without a full stop."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _remedy(error: BaseException, verb: Verb) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "; free some space or point `storage` elsewhere, then run the same command again"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"; this user may not {verb} here: change the permissions or point `storage` elsewhere"
        )
    text = str(error)
    if "ACCESS_DENIED" in text or "redential" in text:
        return (
            "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or an AWS profile) for this storage"
        )
    return ""
