"""The bank's format: what its JSON files say, how they are checked, and what a version's digest covers.

Objects and pages are named by the sha256 of their bytes.  Manifests, refs and notes are *sealed*: canonical JSON
that carries the sha256 of the rest of itself and is refused unless its bytes are exactly what writing it again
would give, so no byte of it can change unnoticed.  A digest is the only thing in a manifest that ever becomes
part of a path, and it is 64 hexadecimal digits or the file is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from workers.errors import BankError, CorruptionError

FORMAT = "luca-bank"
FORMAT_VERSION = 1
PAGE_SIZES = (64, 8, 1)
"""Records a page may hold.  A bank of n tasks has n // 64 full pages, then up to 7 of 8, then up to 7 of 1, so a
commit rewrites at most 64 records, each record is written three times in all, and a thousand tasks take few reads."""

JsonObject = dict[str, Any]
_T = TypeVar("_T")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LARGEST_VERSION = 99_999_999


# -- names, digests, canonical JSON --------------------------------------------------------------------------


def check_name(what: str, name: object) -> str:
    """The name itself when it may stand in a path.

    Raises:
        BankError: it is not 1 to 100 letters, digits, '.', '_' or '-', or starts with '.' or '-'.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BankError(
            f"{what} {str(name)[:120]!r} is not a usable name: 1 to 100 of A-Z a-z 0-9 . _ - "
            "and neither '.' nor '-' first"
        )
    return name


def is_digest(text: object) -> bool:
    """Whether this is a sha256 in lower-case hexadecimal."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def sha256(data: bytes | memoryview) -> str:
    """The digest by which the bank names bytes."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: object) -> bytes:
    """The one way this value is written as JSON: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def plain(what: str, value: Mapping[str, Any]) -> JsonObject:
    """A JSON object equal to ``value`` after a round trip (tuples become lists, keys become strings).

    Raises:
        BankError: it holds something that JSON does not, such as an array or NaN; ``what`` names the field.
    """
    try:
        result: JsonObject = json.loads(canonical(dict(value)))
    except (TypeError, ValueError) as error:
        raise BankError(
            f"{what} is not plain JSON ({error}): give strings, finite numbers, lists"
        ) from error
    return result


def seal(body: JsonObject) -> bytes:
    """The bytes of a sealed file: canonical JSON with a ``check`` over the rest, and a newline."""
    return canonical({**body, "check": sha256(canonical(body))}) + b"\n"


def unseal(data: bytes, where: str) -> JsonObject:
    """The body of a sealed file.

    Raises:
        CorruptionError: any byte differs from what was written.
    """
    value = parse_json(data, where)
    body = {key: item for key, item in value.items() if key != "check"}
    try:
        intact = seal(body) == data
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise CorruptionError(f"{where} is damaged: its content does not match its own check")
    return body


def parse_json(data: bytes, where: str) -> JsonObject:
    """A JSON object.

    Raises:
        CorruptionError: the bytes are not one.
    """
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{where} is damaged: it is not valid JSON") from error
    if not isinstance(value, dict):
        raise CorruptionError(f"{where} is damaged: it is not a JSON object")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# -- typed access to parsed JSON -----------------------------------------------------------------------------


class _Fields:
    """Reads the fields of one JSON object; anything missing, extra or of another type is corruption."""

    def __init__(self, value: object, where: str) -> None:
        self._where = where
        if not isinstance(value, dict):
            self._refuse("an object is missing")
        self._left: JsonObject = dict(value)

    def take(self, name: str, kind: type[_T]) -> _T:
        value = self._left.pop(name, None)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self._refuse(f"field '{name}' is missing or not a {kind.__name__}")
        return value

    def take_digest(self, name: str) -> str:
        value = self._left.pop(name, None)
        if not is_digest(value):
            self._refuse(f"field '{name}' is not a sha256")
        return str(value)

    def take_size(self, name: str) -> int:
        value = self.take(name, int)
        if value < 0:
            self._refuse(f"field '{name}' is negative")
        return value

    def take_optional(self, name: str, kind: type[_T]) -> _T | None:
        if self._left.get(name) is None:
            self._left.pop(name, None)
            return None
        return self.take(name, kind)

    def finish(self) -> None:
        if self._left:
            self._refuse(f"unknown field '{min(self._left)[:80]}'")

    def _refuse(self, reason: str) -> NoReturn:
        raise CorruptionError(f"{self._where} is damaged or from a newer program: {reason}")


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
        fields = _Fields(value, where)
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
        fields = _Fields(value, where)
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
        if not _NAME.fullmatch(record.id):
            raise CorruptionError(f"{where} is damaged: a task has an impossible id")
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
        fields = _Fields(value, where)
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
    fields = _Fields(parse_json(data, where), where)
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
    that is not its parent (rollback, fork, import); ``counts`` has tasks, classes and object bytes, for listings.
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
        fields = _Fields(body, where)
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
        fields = _Fields(unseal(data, where), where)
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
    if not all(_NAME.fullmatch(kind) for kind in values):
        raise CorruptionError(f"{where} is damaged: an object has an impossible kind")
    return {kind: ObjectRef.from_json(value, where) for kind, value in values.items()}


def _counts(values: JsonObject, where: str) -> JsonObject:
    fields = _Fields(values, where)
    counts = {name: fields.take_size(name) for name in ("tasks", "classes", "bytes")}
    fields.finish()
    return counts
