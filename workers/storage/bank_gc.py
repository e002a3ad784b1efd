"""Removing what no version needs: leftovers of crashes, and, when asked, versions that no name points to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from workers.errors import BankError, CorruptionError
from workers.storage.atomic import is_temporary
from workers.storage.bank import Bank
from workers.storage.bank_json import JsonObject, is_digest
from workers.storage.bank_manifest import version_number
from workers.storage.bank_pages import PageCache
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Entry


@dataclass(frozen=True)
class Removal:
    """One file that goes."""

    path: str
    size: int
    why: Literal["version", "object", "temporary"]


@dataclass(frozen=True)
class GcReport:
    """What gc removed, or with ``dry_run`` would remove."""

    bank: str
    dry_run: bool
    kept_versions: tuple[int, ...]
    removed: tuple[Removal, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all removed files."""
        return sum(removal.size for removal in self.removed)

    def to_json(self) -> JsonObject:
        """For machines."""
        return {
            "bank": self.bank,
            "dry_run": self.dry_run,
            "bytes": self.bytes,
            "kept_versions": list(self.kept_versions),
            "removed": [asdict(removal) for removal in self.removed],
        }


def collect_garbage(
    bank: Bank,
    *,
    dry_run: bool = True,
    keep_versions: int | None = None,
    run: str = "",
    wait: float = 0.0,
) -> GcReport:
    """Removes files that no kept version needs.

    By default every version is kept, so only leftovers go.  ``keep_versions`` = n keeps the newest n versions and
    all that a tag points to; older ones go, with the objects only they needed.  That is how an unlearned task is
    erased for good.  Holds the writer's lock unless ``dry_run``, so nothing is removed that a commit is about to
    need; a reader in the middle of a version that goes is told so.

    Raises:
        BankError: the bank has no version, or ``keep_versions`` is not positive.
        BankLockedError: somebody is writing.
        CorruptionError: a ref, or a version that stays, cannot be read, so what is needed is unknown: nothing is
            removed.
    """
    if keep_versions is not None and keep_versions < 1:
        raise BankError(f"keep_versions is {keep_versions}: at least the newest version stays")
    if dry_run:
        return _report(bank, keep_versions, dry_run=True)
    with BankWriter(bank, run=run, wait=wait):
        report = _report(bank, keep_versions, dry_run=False)
        for removal in report.removed:  # manifests first: no manifest is ever without its objects
            bank.storage.delete(removal.path)
    return report


def _report(bank: Bank, keep_versions: int | None, *, dry_run: bool) -> GcReport:
    versions = bank.versions()
    if not versions:
        raise BankError(
            f"bank '{bank.name}' has no version: nothing says what is needed, so nothing is removed"
        )
    pointed_at = set(bank.refs().values())  # also at a manifest that was lost and may come back
    kept = set(versions if keep_versions is None else versions[-keep_versions:]) | pointed_at
    needed: set[str] = set()
    pages = PageCache(bank.objects)
    for number in sorted(kept):
        try:
            manifest = bank.read_manifest(number)
            pages.tasks(manifest)
        except CorruptionError as error:
            raise CorruptionError(
                f"version {number} cannot be read, so what it needs is unknown and nothing is removed: {error}"
            ) from error
        needed.update(page.digest for page in manifest.pages)
        needed.update(ref.digest for ref in manifest.shared.values())
    needed.update(ref.digest for ref in pages.object_refs())
    removed = [*_versions(bank, kept), *_objects(bank, needed), *_temporaries(bank)]
    return GcReport(bank.name, dry_run, tuple(sorted(kept)), tuple(removed))


def _versions(bank: Bank, kept: set[int]) -> Iterator[Removal]:
    for directory in ("versions", "notes"):
        for entry in bank.storage.list(f"{bank.directory}/{directory}"):
            number = version_number(entry.name)
            if number is not None and number not in kept:
                yield Removal(entry.path, entry.size, "version")


def _objects(bank: Bank, needed: set[str]) -> Iterator[Removal]:
    for entry in bank.storage.list(f"{bank.directory}/objects"):
        if is_digest(entry.name) and entry.name not in needed:
            yield Removal(entry.path, entry.size, "object")


def _temporaries(bank: Bank) -> Iterator[Removal]:
    """Half-written files.  Not the lock's: a contender may be writing its claim at this moment."""
    for directory in ("versions", "notes", "objects", "refs"):
        entries: list[Entry] = bank.storage.list(f"{bank.directory}/{directory}")
        for entry in entries:
            if is_temporary(entry.name):
                yield Removal(entry.path, entry.size, "temporary")
