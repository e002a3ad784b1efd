"""The bank's format: what its JSON files say, how they are checked, and what a version's digest covers.

Objects and pages are named by the sha256 of their bytes; manifests and refs are sealed.  A digest is the only thing
in a manifest that ever becomes part of a path, and it is 64 hexadecimal digits or the file is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from workers.errors import BankError, CorruptionError
from workers.storage.bank_json import (
    Fields,
    JsonObject,
    canonical,
    is_name,
    is_text,
    parse_json,
    seal,
    sha256,
    unseal,
)

FORMAT = "luca-bank"
FORMAT_VERSION = 1
PAGE_SIZES = (64, 8, 1)
"""Records a page may hold.  A bank of n tasks has n // 64 full pages, then up to 7 of 8, then up to 7 of 1, so a
commit rewrites at most 64 records, each record is written three times in all, and a thousand tasks take few reads."""

_LARGEST_VERSION = 99_999_999


# -- objects, tasks, pages -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ObjectRef:
    """An object (safetensors file) by the sha256 of its bytes, and how many there are."""

    digest: str
    size: int

    def to_json(self) -> JsonObject:
        """As it stands in a page or manifest."""
        return {"digest": self.digest, "size": self.size}

    @classmethod
    def from_json(cls, value: object, where: str) -> ObjectRef:
        """Raises CorruptionError when malformed."""
        fields = Fields(value, where)
        ref = cls(fields.take_digest("digest"), fields.take_size("size"))
        fields.finish()
        return ref


@dataclass(frozen=True)
class TaskRecord:
    """A learned task as a version knows it.

    ``definition`` is what was learned (names, counts, digest of the samples), ``objects`` the arrays by kind
    ("module", "head", "statistics"), ``info`` anything worth knowing that does not identify the task: losses,
    parameters stored and non-zero, validation accuracy.  ``info`` is not part of any content digest.
    """

    id: str
    name: str
    domain: str
    classes: tuple[str, ...]
    definition: JsonObject
    objects: dict[str, ObjectRef]
    info: JsonObject = field(default_factory=dict)

    @cached_property
    def content_digest(self) -> str:
        """sha256 over everything but ``info``."""
        content = self.to_json()
        del content["info"]
        content["objects"] = {kind: ref.digest for kind, ref in self.objects.items()}
        return sha256(canonical(content))

    @cached_property
    def size(self) -> int:
        """Bytes of the task's objects."""
        return sum(ref.size for ref in self.objects.values())

    def to_json(self) -> JsonObject:
        """As it stands in a page."""
        return {
            "id": self.id,
            "name": self.name,
            "domain": self.domain,
            "classes": list(self.classes),
            "definition": self.definition,
            "objects": {kind: ref.to_json() for kind, ref in self.objects.items()},
            "info": self.info,
        }

    @classmethod
    def from_json(cls, value: object, where: str) -> TaskRecord:
        """Raises CorruptionError when malformed."""
        fields = Fields(value, where)
        record = cls(
            id=fields.take("id", str),
            name=fields.take("name", str),
            domain=fields.take("domain", str),
            classes=_strings(fields.take("classes", list), where),
            definition=fields.take("definition", dict),
            objects=_object_refs(fields.take("objects", dict), where),
            info=fields.take("info", dict),
        )
        fields.finish()
        if not is_name(record.id):
            raise CorruptionError(f"{where} is damaged: a task has an impossible id")
        if not all(is_text(text) for text in (record.name, record.domain, *record.classes)):
            raise CorruptionError(f"{where} is damaged: a name has control characters")
        return record


@dataclass(frozen=True)
class PageRef:
    """A page (a run of task records) by the sha256 of its bytes, its size, and how many tasks it lists."""

    digest: str
    size: int
    tasks: int

    def to_json(self) -> JsonObject:
        """As it stands in a manifest."""
        return {"digest": self.digest, "size": self.size, "tasks": self.tasks}

    @classmethod
    def from_json(cls, value: object, where: str) -> PageRef:
        """Raises CorruptionError when malformed."""
        fields = Fields(value, where)
        ref = cls(fields.take_digest("digest"), fields.take_size("size"), fields.take_size("tasks"))
        fields.finish()
        return ref


def page_layout(tasks: int) -> tuple[int, ...]:
    """How many records stand on each page of a bank of so many tasks; see PAGE_SIZES."""
    layout: list[int] = []
    for size in PAGE_SIZES:
        layout += [size] * (tasks // size)
        tasks %= size
    return tuple(layout)


def encode_page(records: Sequence[TaskRecord]) -> bytes:
    """The bytes of a page."""
    return canonical({"format": FORMAT, "tasks": [record.to_json() for record in records]}) + b"\n"


def decode_page(data: bytes, where: str) -> tuple[TaskRecord, ...]:
    """The records of a page whose digest has been checked.

    Raises:
        CorruptionError: it is not a page.
    """
    fields = Fields(parse_json(data, where), where)
    if fields.take("format", str) != FORMAT:
        raise CorruptionError(f"{where} is not a page of a {FORMAT}")
    records = tuple(TaskRecord.from_json(value, where) for value in fields.take("tasks", list))
    fields.finish()
    return records


def content_digest(
    *,
    backbone: JsonObject,
    settings: JsonObject,
    shared: Mapping[str, ObjectRef],
    tasks: Iterable[TaskRecord],
) -> str:
    """The digest of a version: what it would predict and what it was learned from, never when, where or by whom."""
    return sha256(
        canonical(
            {
                "format": FORMAT,
                "backbone": backbone,
                "settings": settings,
                "shared": {kind: ref.digest for kind, ref in shared.items()},
                "tasks": [record.content_digest for record in tasks],
            }
        )
    )


# -- manifests, refs, notes ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One version.  ``backbone``, ``settings``, ``pages`` and ``shared`` are content; the rest tells its story.

    ``operation`` is a phrase such as "commit task-003"; ``origin`` names the version this one was made from when
    that is not its parent (rollback, fork, import); ``counts`` has tasks, classes and object bytes, for listings;
    ``defaults`` are settings that who predicts with this version starts from.
    """

    version: int
    parent: int | None
    parent_digest: str | None
    digest: str
    backbone: JsonObject
    settings: JsonObject
    pages: tuple[PageRef, ...]
    shared: dict[str, ObjectRef]
    counts: JsonObject
    defaults: JsonObject
    metrics: JsonObject
    operation: str
    origin: JsonObject | None
    created: str
    writer: JsonObject
    code: str

    def to_bytes(self) -> bytes:
        """The sealed file."""
        body = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "version": self.version,
            "parent": self.parent,
            "parent_digest": self.parent_digest,
            "digest": self.digest,
            "backbone": self.backbone,
            "settings": self.settings,
            "pages": [page.to_json() for page in self.pages],
            "shared": {kind: ref.to_json() for kind, ref in self.shared.items()},
            "counts": self.counts,
            "defaults": self.defaults,
            "metrics": self.metrics,
            "operation": self.operation,
            "origin": self.origin,
            "created": self.created,
            "writer": self.writer,
            "code": self.code,
        }
        return seal(body)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Manifest:
        """Raises CorruptionError when damaged, BankError when written by a newer format."""
        body = unseal(data, where)
        fields = Fields(body, where)
        if fields.take("format", str) != FORMAT:
            raise CorruptionError(f"{where} is not a manifest of a {FORMAT}")
        written_in = fields.take("format_version", int)
        if written_in != FORMAT_VERSION:
            raise BankError(
                f"{where} has format version {written_in}, this program reads {FORMAT_VERSION}: "
                "use the program that wrote it"
            )
        manifest = cls(
            version=fields.take_size("version"),
            parent=fields.take_optional("parent", int),
            parent_digest=fields.take_optional("parent_digest", str),
            digest=fields.take_digest("digest"),
            backbone=fields.take("backbone", dict),
            settings=fields.take("settings", dict),
            pages=tuple(PageRef.from_json(page, where) for page in fields.take("pages", list)),
            shared=_object_refs(fields.take("shared", dict), where),
            counts=_counts(fields.take("counts", dict), where),
            defaults=fields.take("defaults", dict),
            metrics=fields.take("metrics", dict),
            operation=fields.take("operation", str),
            origin=fields.take_optional("origin", dict),
            created=fields.take("created", str),
            writer=fields.take("writer", dict),
            code=fields.take("code", str),
        )
        fields.finish()
        return manifest

    def with_metrics(self, metrics: JsonObject) -> Manifest:
        """The same version with these metrics added over its own."""
        return replace(self, metrics={**self.metrics, **metrics})


@dataclass(frozen=True)
class Ref:
    """What a name such as ``latest`` or ``production`` points to: a version and its content digest."""

    version: int
    digest: str

    def to_bytes(self) -> bytes:
        """The sealed file."""
        return seal({"format": FORMAT, "version": self.version, "digest": self.digest})

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Ref:
        """Raises CorruptionError when damaged."""
        fields = Fields(unseal(data, where), where)
        fields.take("format", str)
        ref = cls(fields.take_size("version"), fields.take_digest("digest"))
        fields.finish()
        return ref


def version_file(version: int) -> str:
    """The file name of a version's manifest (and of its notes)."""
    if not 0 < version <= _LARGEST_VERSION:
        raise BankError(f"version {version} is out of range: 1 to {_LARGEST_VERSION}")
    return f"{version:08d}.json"


def version_number(file_name: str) -> int | None:
    """The version of a manifest's file name, None for any other name."""
    stem, dot, suffix = file_name.partition(".")
    return int(stem) if dot and suffix == "json" and re.fullmatch(r"[0-9]{8}", stem) else None


def _strings(values: list[Any], where: str) -> tuple[str, ...]:
    if not all(isinstance(value, str) for value in values):
        raise CorruptionError(f"{where} is damaged: a list of names holds something else")
    return tuple(values)


def _object_refs(values: JsonObject, where: str) -> dict[str, ObjectRef]:
    if not all(is_name(kind) for kind in values):
        raise CorruptionError(f"{where} is damaged: an object has an impossible kind")
    return {kind: ObjectRef.from_json(value, where) for kind, value in values.items()}


def _counts(values: JsonObject, where: str) -> JsonObject:
    fields = Fields(values, where)
    counts = {name: fields.take_size(name) for name in ("tasks", "classes", "bytes")}
    fields.finish()
    return counts
