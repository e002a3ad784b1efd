"""One version of a bank: its tasks, and their arrays when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from workers.errors import BankError, CorruptionError
from workers.storage.bank_json import JsonObject
from workers.storage.bank_manifest import Manifest, TaskRecord
from workers.storage.bank_tensors import Arrays, decode

if TYPE_CHECKING:
    from workers.storage.bank import Bank


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
    def defaults(self) -> JsonObject:
        """Settings that a prediction starts from, as given to the writer.  Not part of the digest."""
        return self.manifest.defaults

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
