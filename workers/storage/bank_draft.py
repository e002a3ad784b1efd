"""A learned task on its way into a bank, and its translation into a record and the bytes of its objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.errors import BankError
from workers.storage.bank_changes import changes, sentences
from workers.storage.bank_json import check_name, is_text, plain, sha256
from workers.storage.bank_manifest import ObjectRef, TaskRecord
from workers.storage.bank_tensors import Arrays, encode
from workers.storage.bank_version import BankVersion

SharedUpdate = Mapping[str, "Arrays | None"]
"""Arrays that belong to no task, by kind; a kind that is not given stays as it was, None removes it."""


@dataclass(frozen=True, kw_only=True)
class TaskDraft:
    """A learned task on its way into a bank.

    ``definition`` identifies what was learned; ``arrays`` are stored as given, by kind ("module", "head",
    "statistics"); ``info`` is anything else worth knowing and is not part of a version's digest.
    """

    id: str
    name: str
    domain: str = ""
    classes: tuple[str, ...]
    definition: Mapping[str, Any]
    arrays: Mapping[str, Arrays]
    info: Mapping[str, Any] = field(default_factory=dict)


def prepare(draft: TaskDraft) -> tuple[TaskRecord, dict[str, bytes]]:
    """The record of a draft, and the bytes of its objects by digest.

    Raises:
        BankError: a name cannot be used, a class is given twice, or something is not plain JSON or an array.
    """
    task = check_name("task", draft.id)
    classes = tuple(draft.classes)
    if (
        not classes
        or len(set(classes)) != len(classes)
        or not all(isinstance(c, str) and c for c in classes)
    ):
        raise BankError(
            f"task '{task}' needs at least one class, each a name given once: {classes!r:.200}"
        )
    for text in (draft.name, draft.domain, *classes):
        if not is_text(text):
            raise BankError(
                f"task '{task}': {text!r:.200} is not a line of text without control characters"
            )
    if not draft.arrays:
        raise BankError(f"task '{task}' has no arrays: nothing was learned")
    objects: dict[str, ObjectRef] = {}
    encoded: dict[str, bytes] = {}
    for kind, arrays in sorted(draft.arrays.items()):
        objects[check_name("kind of arrays", kind)] = _reference(arrays, encoded)
    record = TaskRecord(
        id=task,
        name=draft.name,
        domain=draft.domain,
        classes=classes,
        definition=plain(f"definition of task '{task}'", draft.definition),
        objects=objects,
        info=plain(f"info of task '{task}'", draft.info),
    )
    return record, encoded


def refuse_difference(bank: str, existing: TaskRecord, record: TaskRecord) -> None:
    """Refuse to commit a task under an id that stands for another one.

    Raises:
        BankError: definition or arrays differ; the differences are listed.
    """
    before, after = existing.to_json(), record.to_json()
    fields = ("name", "domain", "classes", "definition")
    found = changes({key: before[key] for key in fields}, {key: after[key] for key in fields})
    if found:
        raise BankError(
            f"task '{record.id}' is in bank '{bank}' with another definition: {sentences(found)}; "
            "give the changed task another name, unlearn the old one first, or use another bank"
        )
    kinds = set(existing.objects) | set(record.objects)
    other = sorted(k for k in kinds if existing.objects.get(k) != record.objects.get(k))
    if other:
        raise BankError(
            f"task '{record.id}' is in bank '{bank}' with the same definition but another "
            f"{' and '.join(other)}; unlearn it before learning it again, or use another bank"
        )


def _reference(arrays: Arrays, encoded: dict[str, bytes]) -> ObjectRef:
    data = encode(arrays)
    digest = sha256(data)
    encoded[digest] = data
    return ObjectRef(digest, len(data))


def updated_shared(
    head: BankVersion | None, update: SharedUpdate
) -> tuple[dict[str, ObjectRef], dict[str, bytes]]:
    """The shared objects of the version after ``head``, and the bytes of the new ones by digest."""
    refs = dict(head.manifest.shared) if head else {}
    encoded: dict[str, bytes] = {}
    for kind, arrays in update.items():
        check_name("kind of arrays", kind)
        if arrays is None:
            refs.pop(kind, None)
        else:
            refs[kind] = _reference(arrays, encoded)
    return refs, encoded


def draft_of(version: BankVersion, record: TaskRecord) -> TaskDraft:
    """The draft that a committed task came from, with its arrays read and checked."""
    return TaskDraft(
        id=record.id,
        name=record.name,
        domain=record.domain,
        classes=record.classes,
        definition=record.definition,
        arrays={kind: version.arrays(record, kind) for kind in record.objects},
        info=record.info,
    )
