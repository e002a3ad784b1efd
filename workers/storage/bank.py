"""Reading a module bank: numbered immutable versions of what was learned, over content-addressed objects.

Readers take no lock.  A version becomes visible only when its manifest appears, and everything the manifest names
is there before it, so a reader sees a whole version or none of it.  `refs/latest` is a hint that saves listing:
the manifests are the truth, and a reader looks forward from the hint for versions committed after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workers.errors import BankError, CorruptionError
from workers.storage.bank_json import JsonObject, check_name, unseal
from workers.storage.bank_manifest import (
    Manifest,
    Ref,
    content_digest,
    version_file,
    version_number,
)
from workers.storage.bank_objects import ObjectStore
from workers.storage.bank_pages import PageCache
from workers.storage.bank_version import BankVersion
from workers.storage.filesystem import Storage
from workers.storage.lock import LockOwner, current_owner

__all__ = ["LATEST", "Bank", "BankVersion"]

LATEST = "latest"


@dataclass(frozen=True)
class Bank:
    """One bank in a storage.  Holds no state: every call looks at the storage."""

    storage: Storage
    name: str

    @classmethod
    def open(cls, storage: Storage, name: str) -> Bank:
        """An existing bank.

        Raises:
            BankError: there is no bank of that name; the message lists those there are.
        """
        bank = cls(storage, check_name("bank", name))
        if not bank.exists():
            there = ", ".join(cls.names(storage)) or (
                "none yet; name the storage of the run that made it (--storage DIR, or -o storage=DIR with an experiment)"
            )
            raise BankError(f"no bank '{name}' in {storage.describe()}; banks there: {there}")
        return bank

    @classmethod
    def create(cls, storage: Storage, name: str) -> Bank:
        """A bank that does not exist yet; it appears with its first version.

        Raises:
            BankError: it exists already.
        """
        bank = cls(storage, check_name("bank", name))
        if bank.exists():
            raise BankError(f"bank '{name}' exists already: choose another name")
        return bank

    @classmethod
    def open_or_create(cls, storage: Storage, name: str) -> Bank:
        """The bank of that name, whether it has versions yet or not."""
        return cls(storage, check_name("bank", name))

    @classmethod
    def names(cls, storage: Storage) -> tuple[str, ...]:
        """Every bank with at least one version, sorted."""
        candidates = [entry.name for entry in storage.list("banks") if entry.is_directory]
        return tuple(name for name in candidates if cls(storage, name).exists())

    # -- places ----------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The bank's directory, relative to the storage."""
        return f"banks/{self.name}"

    @property
    def objects(self) -> ObjectStore:
        """The bank's objects and pages."""
        return ObjectStore(self.storage, f"{self.directory}/objects")

    @property
    def lock_directory(self) -> str:
        """Where writers claim the bank."""
        return f"{self.directory}/lock"

    @property
    def run_lock_directory(self) -> str:
        """Where the drivers of runs claim it: one that learns into a bank does so long before it writes."""
        return f"{self.lock_directory}/run"

    def manifest_path(self, version: int) -> str:
        """Where a version's manifest lies."""
        return f"{self.directory}/versions/{version_file(version)}"

    def notes_path(self, version: int) -> str:
        """Where metrics learned after the commit lie."""
        return f"{self.directory}/notes/{version_file(version)}"

    def ref_path(self, name: str) -> str:
        """Where a ref lies."""
        return f"{self.directory}/refs/{check_name('tag', name)}"

    # -- what there is ---------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether it has a version; a damaged ref does not hide a bank."""
        return self.storage.exists(self.ref_path(LATEST)) or bool(self.versions())

    def versions(self) -> tuple[int, ...]:
        """The numbers of all versions, rising; a listing, so not for use on every commit."""
        numbers = [version_number(e.name) for e in self.storage.list(f"{self.directory}/versions")]
        return tuple(sorted(number for number in numbers if number is not None))

    def latest(self) -> int | None:
        """The newest version's number, None when there is none.

        Raises:
            CorruptionError: ``refs/latest`` is damaged.
        """
        ref = self._read_ref(LATEST)
        if ref is None:
            versions = self.versions()
            return versions[-1] if versions else None
        number = ref.version
        while self.storage.exists(self.manifest_path(number + 1)):
            number += 1
        return number

    def refs(self) -> dict[str, int]:
        """The version that each name points to: the tags, and ``latest`` when there is a version."""
        found: dict[str, int] = {}
        latest = self.latest()
        if latest is not None:
            found[LATEST] = latest
        for entry in self.storage.list(f"{self.directory}/refs"):
            if entry.name != LATEST and not entry.name.startswith(".") and not entry.is_directory:
                ref = self._read_ref(entry.name)
                if ref is not None:
                    found[entry.name] = ref.version
        return found

    def tags(self, version: int) -> tuple[str, ...]:
        """The tags that point to a version."""
        return tuple(name for name, to in self.refs().items() if to == version and name != LATEST)

    def resolve(self, ref: str | int = LATEST) -> int:
        """The number of a version given as a number, ``latest`` or a tag.

        Raises:
            BankError: there is no such version or tag; the message lists what there is.
            CorruptionError: the latest version's manifest is gone.
        """
        if isinstance(ref, int) or (ref.isascii() and ref.isdecimal()):
            number = int(ref) if len(str(ref)) < 19 else -1
            if number < 0 or not self.storage.exists(self.manifest_path(number)):
                latest = self.latest()
                if number == latest:
                    raise self._lost(number)
                raise BankError(f"bank '{self.name}' has no version {ref}; the latest is {latest}")
            return number
        if ref == LATEST:
            latest = self.latest()
            if latest is None:
                raise BankError(f"bank '{self.name}' has no version yet")
            return latest
        pointer = self._read_ref(ref)
        if pointer is None:
            names = ", ".join(self.refs()) or "none"
            raise BankError(f"bank '{self.name}' has no tag '{ref}'; it has: {names}")
        return pointer.version

    def owner(self) -> LockOwner | None:
        """Who is writing the bank at the moment, None when nobody is."""
        return current_owner(self.storage, self.lock_directory)

    # -- versions --------------------------------------------------------------------------------------------

    def load(self, ref: str | int = LATEST, *, pages: PageCache | None = None) -> BankVersion:
        """A version with its list of tasks; arrays are read when asked for.

        Whoever loads many versions keeps ``pages``: what an earlier version listed is then not read again.

        Raises:
            BankError: there is no such version.
            CorruptionError: a manifest, page or ref is damaged; the message names the file.
        """
        number = self.resolve(ref)
        version = self._load(number, pages or PageCache(self.objects))
        pointer = self._read_ref(ref) if isinstance(ref, str) and not ref.isdecimal() else None
        if pointer and pointer.version == number and pointer.digest != version.digest:
            raise CorruptionError(
                f"{self.storage.describe(self.ref_path(str(ref)))} and the manifest of version {number} disagree: "
                "one of them was exchanged; tag the version again"
            )
        return version

    def load_all(self) -> Iterator[BankVersion]:
        """Every version, oldest first; far quicker than loading each, because versions share pages.

        Raises:
            CorruptionError: a manifest or page is damaged.
        """
        pages = PageCache(self.objects)
        for number in self.versions():
            yield self._load(number, pages)

    def _load(self, number: int, pages: PageCache) -> BankVersion:
        manifest = self.read_manifest(number)
        tasks = pages.tasks(manifest)
        digest = content_digest(
            backbone=manifest.backbone,
            settings=manifest.settings,
            shared=manifest.shared,
            tasks=tasks,
        )
        if digest != manifest.digest:
            raise CorruptionError(
                f"{self.storage.describe(self.manifest_path(number))} is damaged: its content does not match "
                f"its digest; {self._without(number)}"
            )
        return BankVersion(self, manifest, tasks)

    def read_manifest(self, number: int) -> Manifest:
        """A version's manifest, with the metrics of its notes.

        Raises:
            CorruptionError: it is missing or damaged.
        """
        path = self.manifest_path(number)
        where = self.storage.describe(path)
        data = self.storage.read_if_exists(path)
        if data is None:
            raise self._lost(number)
        try:
            manifest = Manifest.from_bytes(data, where)
        except CorruptionError as error:
            raise CorruptionError(f"{error}; {self._without(number)}") from error
        if manifest.version != number:
            raise CorruptionError(
                f"{where} is the manifest of version {manifest.version}, not {number}; {self._without(number)}"
            )
        return manifest.with_metrics(self.read_notes(number))

    def read_notes(self, number: int) -> JsonObject:
        """The metrics annotated to a version after its commit; empty when there are none.

        Raises:
            CorruptionError: the file is damaged.
        """
        path = self.notes_path(number)
        data = self.storage.read_if_exists(path)
        if data is None:
            return {}
        try:
            metrics = unseal(data, self.storage.describe(path)).get("metrics")
        except CorruptionError as error:
            lost = "delete it: only metrics added after the commit are lost"
            raise CorruptionError(f"{error}; {lost}") from error
        return metrics if isinstance(metrics, dict) else {}

    def _lost(self, number: int) -> CorruptionError:
        """A manifest that should be there and is not."""
        where = self.storage.describe(self.manifest_path(number))
        return CorruptionError(f"{where} is missing; {self._without(number)}")

    def _without(self, number: int) -> str:
        """What to do where a version's manifest is damaged or gone: nothing else can stand in for it."""
        others = [other for other in self.versions() if other != number]
        kept = "put it back from a backup"
        if not others:
            return f"{kept}, or learn another bank (-o bank=NAME)"
        other = max((n for n in others if n < number), default=others[0])
        return f"{kept}, or go on with version {other} in a new bank (`luca bank fork {self.name}@{other} NAME`)"

    def _read_ref(self, name: str) -> Ref | None:
        path = self.ref_path(name)
        data = self.storage.read_if_exists(path)
        if data is None:
            return None
        try:
            return Ref.from_bytes(data, self.storage.describe(path))
        except CorruptionError as error:
            again = (
                "delete it, the newest manifest is found without it"
                if name == LATEST
                else f"delete it and tag the version again (`luca bank tag`), as '{name}'"
            )
            raise CorruptionError(f"{error}; {again}") from error
