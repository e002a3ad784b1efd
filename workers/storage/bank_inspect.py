"""What banks there are, what happened to one, and what differs between two versions, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from workers.errors import LucaError
from workers.storage.bank import LATEST, Bank
from workers.storage.bank_changes import Change, changes
from workers.storage.bank_json import JsonObject
from workers.storage.bank_manifest import Manifest, ObjectRef
from workers.storage.bank_version import BankVersion
from workers.storage.filesystem import Storage


@dataclass(frozen=True)
class VersionSummary:
    """One line of a bank's history."""

    version: int
    parent: int | None
    digest: str
    operation: str
    created: str
    run: str
    tasks: int
    classes: int
    bytes: int
    tags: tuple[str, ...]
    metrics: JsonObject

    def to_json(self) -> JsonObject:
        """For machines."""
        return {**asdict(self), "tags": list(self.tags)}


@dataclass(frozen=True)
class BankSummary:
    """One line of a listing; ``problem`` is set, and ``latest`` None, when the bank cannot be read."""

    name: str
    latest: VersionSummary | None
    tags: dict[str, int]
    owner: str | None
    problem: str | None

    def to_json(self) -> JsonObject:
        """For machines."""
        latest = self.latest.to_json() if self.latest is not None else None
        return {**asdict(self), "latest": latest}


def list_banks(storage: Storage) -> tuple[BankSummary, ...]:
    """Every bank of a storage; one that is damaged is listed with what is wrong."""
    return tuple(_summarise(Bank(storage, name)) for name in Bank.names(storage))


def history(bank: Bank) -> tuple[VersionSummary, ...]:
    """Every version of a bank, oldest first.

    Raises:
        CorruptionError: a manifest or ref is damaged.
    """
    refs = bank.refs()
    return tuple(_line(bank.read_manifest(number), refs) for number in bank.versions())


def _summarise(bank: Bank) -> BankSummary:
    try:
        refs = bank.refs()
        latest = _line(bank.read_manifest(refs[LATEST]), refs) if LATEST in refs else None
    except LucaError as error:
        return BankSummary(bank.name, None, {}, None, str(error))
    owner = bank.owner()
    tags = {name: version for name, version in refs.items() if name != LATEST}
    return BankSummary(bank.name, latest, tags, str(owner) if owner is not None else None, None)


def _line(manifest: Manifest, refs: dict[str, int]) -> VersionSummary:
    tags = (
        name for name, version in refs.items() if version == manifest.version and name != LATEST
    )
    return VersionSummary(
        version=manifest.version,
        parent=manifest.parent,
        digest=manifest.digest,
        operation=manifest.operation,
        created=manifest.created,
        run=str(manifest.writer.get("run", "")),
        tasks=int(manifest.counts["tasks"]),
        classes=int(manifest.counts["classes"]),
        bytes=int(manifest.counts["bytes"]),
        tags=tuple(tags),
        metrics=manifest.metrics,
    )


@dataclass(frozen=True)
class TaskChange:
    """A task that both versions have, but not alike: other definition, or other arrays of these kinds."""

    task: str
    definition: tuple[Change, ...]
    arrays: tuple[str, ...]


@dataclass(frozen=True)
class VersionDiff:
    """What it takes to get from one version's content to another's."""

    before: JsonObject
    after: JsonObject
    backbone: tuple[Change, ...]
    settings: tuple[Change, ...]
    metrics: tuple[Change, ...]
    tasks_added: tuple[str, ...]
    tasks_removed: tuple[str, ...]
    tasks_changed: tuple[TaskChange, ...]
    tasks_reordered: bool
    classes_added: tuple[str, ...]
    classes_removed: tuple[str, ...]
    shared: tuple[str, ...]

    @property
    def same_content(self) -> bool:
        """Whether both versions have one digest."""
        return bool(self.before["digest"] == self.after["digest"])

    def to_json(self) -> JsonObject:
        """For machines."""
        fields: dict[str, Any] = {**asdict(self), "same_content": self.same_content}
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()
        }


def diff(before: BankVersion, after: BankVersion) -> VersionDiff:
    """What differs between two versions, of one bank or of two."""
    old = {task.id: task for task in before.tasks}
    new = {task.id: task for task in after.tasks}
    both = [task for task in old if task in new]
    changed = []
    for task in both:
        fields = ("name", "domain", "classes", "definition")
        a, b = old[task].to_json(), new[task].to_json()
        definition = changes({f: a[f] for f in fields}, {f: b[f] for f in fields})
        arrays = _differing(old[task].objects, new[task].objects)
        if definition or arrays:
            changed.append(TaskChange(task, definition, arrays))
    return VersionDiff(
        before={"bank": before.bank.name, "version": before.version, "digest": before.digest},
        after={"bank": after.bank.name, "version": after.version, "digest": after.digest},
        backbone=changes(before.backbone, after.backbone),
        settings=changes(before.settings, after.settings),
        metrics=changes(before.metrics, after.metrics),
        tasks_added=tuple(task for task in new if task not in old),
        tasks_removed=tuple(task for task in old if task not in new),
        tasks_changed=tuple(changed),
        tasks_reordered=both != [task for task in new if task in old],
        classes_added=_missing(after.classes, before.classes),
        classes_removed=_missing(before.classes, after.classes),
        shared=_differing(before.manifest.shared, after.manifest.shared),
    )


def _missing(names: tuple[str, ...], among: tuple[str, ...]) -> tuple[str, ...]:
    there = set(among)
    return tuple(name for name in names if name not in there)


def _differing(a: dict[str, ObjectRef], b: dict[str, ObjectRef]) -> tuple[str, ...]:
    return tuple(sorted(kind for kind in set(a) | set(b) if a.get(kind) != b.get(kind)))
