"""Which bank and version an argument such as ``demo@production`` means."""

from __future__ import annotations

from importlib import metadata

from workers.errors import BankError
from workers.storage.bank import LATEST, Bank
from workers.storage.bank_version import BankVersion
from workers.storage.filesystem import Storage


def open_bank(storage: str, name: str) -> Bank:
    """An existing bank, for commands on a bank as a whole.

    Raises:
        BankError: there is none of that name (those there are are listed), or a version was given too.
    """
    bank, separator, ref = name.partition("@")
    if separator:
        raise BankError(
            f"this command is about bank '{bank}' as a whole: leave out '@{ref}', or give the version separately"
        )
    return Bank.open(Storage.open(storage), bank)


def open_version(storage: str, name: str) -> BankVersion:
    """The version that ``NAME``, ``NAME@TAG`` or ``NAME@VERSION`` means.

    Raises:
        BankError: there is no such bank, tag or version; those there are are listed.
    """
    bank, ref = split_name(name)
    return Bank.open(Storage.open(storage), bank).load(ref)


def split_name(name: str) -> tuple[str, str]:
    """Bank and version (a number, a tag or "latest") that ``NAME[@TAG|@VERSION]`` means.

    Raises:
        BankError: nothing follows the @.
    """
    bank, separator, ref = name.partition("@")
    if separator and not ref:
        raise BankError(f"'{name}' names no version: give {bank}@TAG, {bank}@NUMBER or just {bank}")
    return bank, ref or LATEST


def program() -> str:
    """The program and its version, as manifests note it."""
    return f"luca-orchestrator {metadata.version('luca-orchestrator')}"
