"""Reading a module bank: numbered immutable versions of what was learned, over content-addressed objects.

Readers take no lock.  A version becomes visible only when its manifest appears, and everything the manifest names
is there before it, so a reader sees a whole version or none of it.  `refs/latest` is a hint that saves listing:
the manifests are the truth, and a reader looks forward from the hint for versions committed after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workers.errors import BankError, CorruptionError
from workers.storage.bank_manifest import (
    JsonObject,
    Manifest,
    Ref,
    TaskRecord,
    check_name,
    content_digest,
    decode_page,
    unseal,
    version_file,
    version_number,
)
from workers.storage.bank_objects import ObjectStore
from workers.storage.bank_tensors import Arrays, decode
from workers.storage.filesystem import Storage
from workers.storage.lock import LockOwner, current_owner

LATEST = "latest"
_READERS = 16


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
            there = ", ".join(cls.names(storage)) or "none yet"
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
        """
        if isinstance(ref, int) or ref.isdecimal():
            number = int(ref)
            if not self.storage.exists(self.manifest_path(number)):
                latest = self.latest()
                raise BankError(
                    f"bank '{self.name}' has no version {number}; the latest is {latest}"
                )
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

    def load(self, ref: str | int = LATEST) -> BankVersion:
        """A version with its list of tasks; arrays are read when asked for.

        Raises:
            BankError: there is no such version.
            CorruptionError: a manifest, page or ref is damaged; the message names the file.
        """
        number = self.resolve(ref)
        manifest = self.read_manifest(number)
        pointer = self._read_ref(ref) if isinstance(ref, str) and not ref.isdecimal() else None
        if pointer and pointer.version == number and pointer.digest != manifest.digest:
            raise CorruptionError(
                f"{self.storage.describe(self.ref_path(str(ref)))} and the manifest of version {number} disagree: "
                "one of them was exchanged; tag the version again"
            )
        tasks = self._read_tasks(manifest)
        digest = content_digest(
            backbone=manifest.backbone,
            settings=manifest.settings,
            shared=manifest.shared,
            tasks=tasks,
        )
        if digest != manifest.digest:
            raise CorruptionError(
                f"{self.storage.describe(self.manifest_path(number))} is damaged: its content does not match "
                "its digest"
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
            raise CorruptionError(
                f"{where} is missing: load another version, or put it back from a backup"
            )
        manifest = Manifest.from_bytes(data, where)
        if manifest.version != number:
            raise CorruptionError(
                f"{where} is the manifest of version {manifest.version}, not {number}"
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
        metrics = unseal(data, self.storage.describe(path)).get("metrics")
        return metrics if isinstance(metrics, dict) else {}

    def _read_tasks(self, manifest: Manifest) -> tuple[TaskRecord, ...]:
        tasks: list[TaskRecord] = []
        pages = self._read_many(page.digest for page in manifest.pages)
        for page, data in zip(manifest.pages, pages, strict=True):
            where = self.storage.describe(self.objects.path(page.digest))
            records = decode_page(data, where)
            if len(records) != page.tasks:
                raise CorruptionError(
                    f"{where} lists {len(records)} tasks, its manifest says {page.tasks}"
                )
            tasks += records
        return tuple(tasks)

    def _read_many(self, digests: Iterable[str]) -> list[bytes]:
        """Several objects; at once when each read is a request over a network."""
        if self.storage.is_local:
            return [self.objects.read(digest) for digest in digests]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self.objects.read, digests))

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


@dataclass(frozen=True)
class BankVersion:
    """One immutable version: what was learned, and where its arrays are."""

    bank: Bank
    manifest: Manifest
    tasks: tuple[TaskRecord, ...]

    @property
    def version(self) -> int:
        """Its number."""
        return self.manifest.version

    @property
    def parent(self) -> int | None:
        """The number of the version before it."""
        return self.manifest.parent

    @property
    def digest(self) -> str:
        """sha256 of the content alone: equal for equal content, whatever the time, host or history."""
        return self.manifest.digest

    @property
    def backbone(self) -> JsonObject:
        """What computed the features, as given to the writer."""
        return self.manifest.backbone

    @property
    def settings(self) -> JsonObject:
        """What the modules were learned with, as given to the writer."""
        return self.manifest.settings

    @property
    def metrics(self) -> JsonObject:
        """Metrics given with the commit or annotated since."""
        return self.manifest.metrics

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Every class, in order of first appearance."""
        return tuple(dict.fromkeys(name for task in self.tasks for name in task.classes))

    @cached_property
    def shared(self) -> dict[str, Arrays]:
        """The arrays that belong to no single task ("whitening", a unified "head"), read and checked.

        Raises:
            CorruptionError: an object is missing or damaged.
        """
        return {kind: self._decode(ref.digest) for kind, ref in self.manifest.shared.items()}

    def find(self, task: str) -> TaskRecord | None:
        """The record of a task id, None when this version has no such task."""
        return self._by_id.get(task)

    def task(self, task: str) -> TaskRecord:
        """The record of a task id.

        Raises:
            BankError: this version has no such task.
        """
        record = self.find(task)
        if record is None:
            ids = ", ".join(list(self._by_id)[:20]) or "none"
            raise BankError(
                f"version {self.version} of bank '{self.bank.name}' has no task '{task}'; it has: {ids}"
            )
        return record

    def arrays(self, task: str | TaskRecord, kind: str) -> Arrays:
        """The arrays of one kind ("module", "head", "statistics") of a task, read and checked.

        The arrays are read-only.

        Raises:
            BankError: no such task or kind.
            CorruptionError: the object is missing or damaged; the message names the file.
        """
        record = self.task(task) if isinstance(task, str) else task
        ref = record.objects.get(kind)
        if ref is None:
            raise BankError(
                f"task '{record.id}' has no {kind}; it has: {', '.join(record.objects)}"
            )
        return self._decode(ref.digest)

    def arrays_of_all(self, kind: str) -> dict[str, Arrays]:
        """The arrays of one kind of every task that has them, by task id; reads at once over a network."""
        having = [task for task in self.tasks if kind in task.objects]
        data = self.bank._read_many(task.objects[kind].digest for task in having)
        return {
            task.id: decode(item, self._where(task.objects[kind].digest))
            for task, item in zip(having, data, strict=True)
        }

    def to_json(self) -> JsonObject:
        """Everything but the arrays, for display."""
        manifest = self.manifest
        return {
            "bank": self.bank.name,
            "version": self.version,
            "parent": self.parent,
            "digest": self.digest,
            "operation": manifest.operation,
            "origin": manifest.origin,
            "created": manifest.created,
            "writer": manifest.writer,
            "code": manifest.code,
            "counts": manifest.counts,
            "backbone": self.backbone,
            "settings": self.settings,
            "metrics": self.metrics,
            "classes": list(self.classes),
            "shared": {kind: ref.to_json() for kind, ref in manifest.shared.items()},
            "tasks": [task.to_json() for task in self.tasks],
        }

    @cached_property
    def _by_id(self) -> dict[str, TaskRecord]:
        return {task.id: task for task in self.tasks}

    def _decode(self, digest: str) -> Arrays:
        try:
            return decode(self.bank.objects.read(digest), self._where(digest))
        except CorruptionError as error:
            if self.bank.storage.exists(self.bank.manifest_path(self.version)):
                raise
            raise BankError(
                f"version {self.version} of bank '{self.bank.name}' was removed while it was being read: "
                "load another version"
            ) from error

    def _where(self, digest: str) -> str:
        return self.bank.storage.describe(self.bank.objects.path(digest))


def describe_version(version: BankVersion) -> dict[str, Any]:
    """The version in three fields, as ``origin`` of another: bank, version, digest."""
    return {"bank": version.bank.name, "version": version.version, "digest": version.digest}
