"""Every error a user can cause, as one small tree.

Each error carries a single sentence: which field or file, what was found, and what would work.  One string
argument keeps them intact when they cross process borders (an exception with other arguments does not
survive Ray's pickling).  The command line prints the sentence and exits with code 2.
"""

from __future__ import annotations


class LucaError(Exception):
    """Base of all errors that a user can mend; ``str(error)`` is one clear sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


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
