"""New banks from old versions: a fork in a storage, and an export that travels as one safetensors file.

An exported file opens in any safetensors reader: tensors are called ``tasks/<id>/<kind>/<name>`` and
``shared/<kind>/<name>``, and its metadata holds the rest of the version as one sealed JSON text.  Importing
encodes the arrays again and compares every digest, so nothing in the file is believed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from workers.errors import BankError, CorruptionError, StorageError
from workers.storage.atomic import write_file
from workers.storage.bank import Bank
from workers.storage.bank_json import JsonObject, check_name, plain, seal, sha256, unseal
from workers.storage.bank_manifest import ObjectRef, TaskRecord, content_digest
from workers.storage.bank_tensors import (
    Arrays,
    TensorInfo,
    encode,
    item_size,
    read_header,
    read_metadata,
    view,
    write_header,
)
from workers.storage.bank_version import BankVersion, describe_version
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

ARCHIVE_FORMAT = "luca-bank-archive"
_ARCHIVE_VERSION = 1
_LARGEST_ARCHIVE = 64 * 2**30


# -- fork ----------------------------------------------------------------------------------------------------


def fork_bank(
    source: BankVersion,
    name: str,
    *,
    storage: Storage | None = None,
    settings: Mapping[str, Any] | None = None,
    run: str = "",
    code: str = "",
) -> BankVersion:
    """A new bank whose first version has the content of ``source``, with a history of its own.

    ``storage`` is where it goes (default: beside the source), ``settings`` replace those of the source for what
    is learned from now on.  On one local disk the objects are shared by hard links, elsewhere copied; both
    survive whatever happens to the source.

    Raises:
        BankError: a bank of that name exists.
        CorruptionError: an object of the source is damaged; nothing was made.
    """
    target = Bank.create(storage or source.bank.storage, name)
    made_with = source.settings if settings is None else plain("settings", settings)
    with BankWriter(target, run=run, code=code) as writer:
        for digest in _object_digests(source.tasks, source.manifest.shared):
            target.objects.take(source.bank.objects, digest)
        target.objects.sync()
        return writer.adopt(
            tasks=source.tasks,
            shared=source.manifest.shared,
            backbone=source.backbone,
            settings=made_with,
            defaults=source.defaults,
            metrics=source.metrics,
            operation=f"fork of {source.bank.name} version {source.version}",
            origin=describe_version(source),
        )


def _object_digests(
    tasks: tuple[TaskRecord, ...], shared: Mapping[str, ObjectRef]
) -> tuple[str, ...]:
    digests = [ref.digest for ref in shared.values()]
    digests += [ref.digest for task in tasks for ref in task.objects.values()]
    return tuple(dict.fromkeys(digests))


# -- export --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Planned:
    """One tensor of an archive and the object it comes from."""

    target: TensorInfo
    digest: str
    source: TensorInfo


def export_version(version: BankVersion, path: str | os.PathLike[str]) -> int:
    """Writes a version into one safetensors file and returns its size in bytes.

    The file appears whole or not at all; equal versions give equal files.

    Raises:
        CorruptionError: an object of the version is damaged.
        StorageError: the file cannot be written.
    """
    plan = _plan(version)
    header = write_header(
        (planned.target for planned in plan),
        {ARCHIVE_FORMAT: seal(_archive_body(version)).decode("ascii")},
    )

    def write(file: BinaryIO) -> None:
        file.write(header)
        digest, data = "", b""
        for planned in plan:
            if planned.digest != digest:
                digest, data = planned.digest, version.bank.objects.read(planned.digest)
            start = 8 + int.from_bytes(data[:8], "little")
            file.write(data[start + planned.source.start : start + planned.source.end])

    write_file(path, write)
    return len(header) + (plan[-1].target.end if plan else 0)


def _plan(version: BankVersion) -> list[_Planned]:
    """Every tensor with its place: widest numbers first, so that all are aligned, then in order of objects."""
    found = []
    for prefix, ref in _prefixes(version.tasks, version.manifest.shared):
        where = version.bank.storage.describe(version.bank.objects.path(ref.digest))
        for info in read_header(version.bank.objects.read(ref.digest), where):
            found.append((f"{prefix}{info.name}", ref.digest, info))
    found.sort(key=lambda item: -item_size(item[2].dtype))
    plan: list[_Planned] = []
    offset = 0
    for name, digest, info in found:
        target = TensorInfo(name, info.dtype, info.shape, offset, offset + info.size)
        plan.append(_Planned(target, digest, info))
        offset = target.end
    return plan


def _prefixes(
    tasks: tuple[TaskRecord, ...], shared: Mapping[str, ObjectRef]
) -> Iterator[tuple[str, ObjectRef]]:
    for kind, ref in sorted(shared.items()):
        yield f"shared/{kind}/", ref
    for task in tasks:
        for kind, ref in sorted(task.objects.items()):
            yield f"tasks/{task.id}/{kind}/", ref


def _archive_body(version: BankVersion) -> JsonObject:
    return {
        "format": ARCHIVE_FORMAT,
        "format_version": _ARCHIVE_VERSION,
        "bank": version.bank.name,
        "version": version.version,
        "digest": version.digest,
        "backbone": version.backbone,
        "settings": version.settings,
        "defaults": version.defaults,
        "metrics": version.metrics,
        "shared": {kind: ref.to_json() for kind, ref in version.manifest.shared.items()},
        "tasks": [task.to_json() for task in version.tasks],
    }


# -- import --------------------------------------------------------------------------------------------------


def import_version(
    storage: Storage,
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    run: str = "",
    code: str = "",
    largest: int = _LARGEST_ARCHIVE,
) -> BankVersion:
    """A new bank from an exported file; its first version has the exported digest.

    ``name`` defaults to the name of the bank it was exported from; files of more than ``largest`` bytes are
    refused unread.

    Raises:
        BankError: a bank of that name exists, or the file is of another format version.
        CorruptionError: the file is not an export, is damaged, or was tampered with; nothing was made.
        StorageError: the file cannot be read, or the storage cannot be written.
    """
    where = os.fspath(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > largest:
                raise BankError(f"{where} has {size} bytes, at most {largest} are accepted")
            if size == 0:
                raise CorruptionError(f"{where} is empty: it is not an exported bank")
            mapped = mmap.mmap(
                file.fileno(), 0, access=mmap.ACCESS_READ
            )  # ends with the last view of it
            return _import(storage, memoryview(mapped), where, name, run, code)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}; copy the file again, or write it again with `luca bank export`"
        ) from error
    except OSError as error:
        raise StorageError(f"{where} cannot be read: {error.strerror}") from error


def _import(
    storage: Storage, data: memoryview, where: str, name: str | None, run: str, code: str
) -> BankVersion:
    archive = _read_archive(data, where)
    target = Bank.create(storage, archive.bank if name is None else name)
    groups = _groups(data, where)
    expected = dict(_prefixes(archive.tasks, archive.shared))
    if unknown := set(groups) - set(expected):
        raise CorruptionError(f"{where} holds arrays that no task names: {min(unknown)[:120]!r}")
    for prefix, ref in expected.items():  # look before anything is written
        _encode_group(data, groups, prefix, ref, where)
    with BankWriter(target, run=run, code=code) as writer:
        for prefix, ref in expected.items():
            target.objects.write(_encode_group(data, groups, prefix, ref, where))
        return writer.adopt(
            tasks=archive.tasks,
            shared=archive.shared,
            backbone=archive.body["backbone"],
            settings=archive.body["settings"],
            defaults=archive.body["defaults"],
            metrics=archive.body["metrics"],
            operation=f"import of {archive.bank} version {archive.body['version']}",
            origin={
                "bank": archive.bank,
                "version": archive.body["version"],
                "digest": archive.body["digest"],
            },
        )


@dataclass(frozen=True)
class _Archive:
    bank: str
    tasks: tuple[TaskRecord, ...]
    shared: dict[str, ObjectRef]
    body: JsonObject


def _read_archive(data: memoryview, where: str) -> _Archive:
    text = read_metadata(data, where).get(ARCHIVE_FORMAT)
    if text is None:
        raise CorruptionError(
            f"{where} is not an exported bank: its metadata has no '{ARCHIVE_FORMAT}'"
        )
    body = unseal(text.encode("utf-8", "surrogatepass"), f"{where}: its metadata")
    if body.get("format_version") != _ARCHIVE_VERSION:
        raise BankError(
            f"{where} has format version {str(body.get('format_version'))[:20]}, this program reads "
            f"{_ARCHIVE_VERSION}: use the program that wrote it"
        )
    kinds: dict[str, type] = {
        "format": str,
        "format_version": int,
        "bank": str,
        "version": int,
        "digest": str,
        "backbone": dict,
        "settings": dict,
        "defaults": dict,
        "metrics": dict,
        "shared": dict,
        "tasks": list,
    }
    if body.keys() != kinds.keys() or not all(
        isinstance(body[key], kind) for key, kind in kinds.items()
    ):
        raise CorruptionError(
            f"{where} is not an exported bank: its metadata has other fields than it must"
        )
    check_name(f"{where}: bank", body["bank"])
    tasks = tuple(TaskRecord.from_json(value, where) for value in body["tasks"])
    shared = {kind: ObjectRef.from_json(value, where) for kind, value in body["shared"].items()}
    if len({task.id for task in tasks}) != len(tasks):
        raise CorruptionError(f"{where} lists a task twice")
    for kind in shared:
        check_name("kind of arrays", kind)
    digest = content_digest(
        backbone=body["backbone"], settings=body["settings"], shared=shared, tasks=tasks
    )
    if digest != body["digest"]:
        raise CorruptionError(f"{where} is damaged: its content does not match its digest")
    return _Archive(body["bank"], tasks, shared, body)


def _groups(data: memoryview, where: str) -> dict[str, list[TensorInfo]]:
    """The tensors of a file by the object they belong to."""
    groups: dict[str, list[TensorInfo]] = {}
    for info in read_header(data, where):
        parts = info.name.split("/", 3 if info.name.startswith("tasks/") else 2)
        prefix = "".join(f"{part}/" for part in parts[:-1])
        groups.setdefault(prefix, []).append(info)
    return groups


def _encode_group(
    data: memoryview,
    groups: Mapping[str, list[TensorInfo]],
    prefix: str,
    ref: ObjectRef,
    where: str,
) -> bytes:
    arrays: Arrays = {info.name[len(prefix) :]: view(data, info) for info in groups.get(prefix, [])}
    encoded = encode(arrays)
    if sha256(encoded) != ref.digest or len(encoded) != ref.size:
        raise CorruptionError(
            f"{where} is damaged: the arrays of {prefix.rstrip('/')} do not match their digest"
        )
    return encoded
