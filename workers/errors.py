"""Every error a user can cause, as one small tree.

Each error carries a single sentence: which field or file, what was found, and what would work.  One string
argument keeps them intact when they cross process borders (an exception with other arguments does not
survive Ray's pickling).  The command line prints the sentence and exits with code 2.
"""

from __future__ import annotations

import re

LONGEST_SENTENCE = 1200
"""Characters of an error that are shown; a longer one is cut in the middle, where found values stand."""


class LucaError(Exception):
    """Base of all errors that a user can mend; ``str(error)`` is one clear sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __str__(self) -> str:
        return one_line(super().__str__())


def one_line(text: str, *, longest: int = LONGEST_SENTENCE) -> str:
    """A text as one line of printable characters, whatever file names, labels and other libraries put into it."""
    line = re.sub(r"\s*[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]\s*", " ", text.strip())
    line = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line
    )
    if len(line) <= longest:
        return line
    begin, end = longest * 2 // 3, longest // 3
    return f"{line[:begin]} [...] {line[-end:]}"


def first_line(error: BaseException) -> str:
    """The first line of what another library says went wrong, without a full stop; its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


class SettingsError(LucaError):
    """A setting is unknown, has the wrong type, or contradicts another one."""


class DataError(LucaError):
    """Samples, labels or features are not what they must be."""


class BackboneError(LucaError):
    """The backbone is unknown, has no [CLS] token, or its weights cannot be had or do not fit."""


class StorageError(LucaError):
    """A storage location cannot be read or written."""


class CorruptionError(StorageError):
    """A stored file does not match its digest; the message names the file."""


class FeatureCorruptionError(CorruptionError):
    """A cached feature part is damaged or gone; the run computes it again."""


class BankError(LucaError):
    """A bank refuses an operation; the bank is left as it was."""


class BankLockedError(BankError):
    """Another run is writing this bank; the message names the owner."""


class StateLostError(LucaError):
    """A restarted actor does not know what it was told before; its caller tells it again."""


class ClusterError(LucaError):
    """The Ray cluster cannot be joined or cannot give what the run asks for."""
