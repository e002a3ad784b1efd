"""The one writer of a bank: every change is a new version that appears whole, or does not happen.

A commit writes objects, then pages, then, by exclusive create, the manifest of the next number, and last the hint
`refs/latest`.  Killed anywhere, it leaves the old version or the new one, and running it again ends at the same
digest.  It never lists versions and never re-reads old objects, so its cost does not grow with a bank's history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from workers.errors import BankError
from workers.storage.atomic import write_atomic, write_exclusive
from workers.storage.bank import LATEST, Bank
from workers.storage.bank_changes import changes, sentences
from workers.storage.bank_draft import (
    SharedUpdate,
    TaskDraft,
    draft_of,
    prepare,
    refuse_difference,
    updated_shared,
)
from workers.storage.bank_json import JsonObject, check_name, plain, seal
from workers.storage.bank_manifest import (
    Manifest,
    ObjectRef,
    Ref,
    TaskRecord,
    content_digest,
)
from workers.storage.bank_pages import write_pages
from workers.storage.bank_version import BankVersion, describe_version
from workers.storage.lock import BankLock, LockOwner


class BankWriter:
    """Holds a bank's lock and makes versions; a context manager.

    A registry that lives as long as a run may call :meth:`open` and :meth:`close` instead.
    """

    def __init__(
        self,
        bank: Bank,
        *,
        run: str = "",
        code: str = "",
        wait: float = 0.0,
        lease: float = 60.0,
        heartbeat: float = 10.0,
    ) -> None:
        """``run`` and ``code`` (the program's version) are noted in manifests; ``wait`` is how many seconds to
        wait for another writer to finish; ``lease`` and ``heartbeat`` are the lock's."""
        self.bank = bank
        self._run = run
        self._code = code
        self._wait = wait
        self._lock = BankLock(
            bank.storage,
            bank.lock_directory,
            what=f"bank '{bank.name}'",
            run=run,
            lease=lease,
            heartbeat=heartbeat,
        )
        self._head: BankVersion | None = None
        self._fresh = False
        self._known: set[str] = set()
        self._classes: set[str] = set()
        self._begun: tuple[JsonObject, JsonObject] | None = None
        self._defaults: JsonObject | None = None

    # -- holding the lock ------------------------------------------------------------------------------------

    def __enter__(self) -> BankWriter:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> BankWriter:
        """Takes the lock.

        Raises:
            BankLockedError: another run is writing this bank; the message names it.
        """
        self._lock.acquire(self._wait)
        self._head, self._fresh = None, False
        self._known.clear()
        self._classes.clear()
        return self

    def close(self) -> None:
        """Lets go of the lock."""
        self._lock.release()

    # -- committing ------------------------------------------------------------------------------------------

    def head(self) -> BankVersion | None:
        """The newest version, None when the bank has none yet.

        Raises:
            BankLockedError: the lock is not held.
            CorruptionError: the newest version cannot be read.
        """
        if not self._fresh:
            self._lock.check()
            number = self.bank.latest()
            self._set_head(None if number is None else self.bank.load(number))
        return self._head

    def begin(
        self,
        backbone: Mapping[str, Any],
        settings: Mapping[str, Any],
        *,
        defaults: Mapping[str, Any] | None = None,
    ) -> BankVersion | None:
        """Says what the coming commits are made with; returns the newest version, None for a new bank.

        ``defaults`` are noted in the coming versions for those who predict with them; None keeps what the version
        before them says.

        Raises:
            BankError: the bank was made with another backbone or other settings; the differences are listed.
        """
        begun = (plain("backbone", backbone), plain("settings", settings))
        head = self.head()
        if head is not None:
            found = changes(head.backbone, begun[0], "backbone")
            found += changes(head.settings, begun[1], "settings")
            if found:
                raise BankError(
                    f"bank '{self.bank.name}' was made differently: {sentences(found)}; use the old values, "
                    "or another bank"
                )
        self._begun = begun
        self._defaults = None if defaults is None else plain("defaults", defaults)
        return head

    def commit(
        self,
        draft: TaskDraft,
        *,
        shared: SharedUpdate | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> BankVersion:
        """Adds a learned task and returns the version that has it.

        Committing again what the bank has (same id, definition and arrays) changes nothing and returns the newest
        version; ``shared`` and ``metrics`` are then ignored.

        Raises:
            BankError: the id stands for another definition or other arrays; the differences are listed.
            BankLockedError: the lock was lost; nothing was written.
            StorageError: the storage cannot be written; the bank is as it was.
        """
        head = self.head()
        backbone, settings = self._made_with(head)
        defaults = self._defaults
        if defaults is None:
            defaults = {} if head is None else head.defaults
        record, encoded = prepare(draft)
        if head is not None and (existing := head.find(record.id)) is not None:
            refuse_difference(self.bank.name, existing, record)
            return head
        shared_refs, shared_encoded = updated_shared(head, shared or {})
        new_metrics = plain("metrics", metrics or {})
        self._write_objects({**encoded, **shared_encoded})
        return self._publish(
            tasks=((*head.tasks, record) if head else (record,)),
            shared=shared_refs,
            backbone=backbone,
            settings=settings,
            defaults=defaults,
            metrics=new_metrics,
            operation=f"commit {record.id}",
        )

    # -- other new versions ----------------------------------------------------------------------------------

    def rollback(self, ref: str | int) -> BankVersion:
        """A new version with an old one's content; history is kept.  The newest version itself when equal."""
        head = self._existing_head()
        old = self.bank.load(ref)
        if old.digest == head.digest:
            return head
        return self._publish(
            tasks=old.tasks,
            shared=old.manifest.shared,
            backbone=old.backbone,
            settings=old.settings,
            defaults=old.defaults,
            metrics=old.metrics,
            operation=f"rollback to version {old.version}",
            origin=describe_version(old),
        )

    def unlearn_task(
        self,
        task: str,
        *,
        reshare: Callable[[BankVersion, tuple[TaskRecord, ...]], SharedUpdate] | None = None,
    ) -> BankVersion:
        """A new version without a task.

        ``reshare(old version, remaining tasks)`` gives the shared arrays as they are without it (a unified head
        without its rows, a whitening that did not see it).  Older versions keep the task until ``gc`` drops them.

        Raises:
            BankError: the newest version has no such task.
        """
        head = self._existing_head()
        gone = head.task(task)
        rest = tuple(record for record in head.tasks if record.id != gone.id)
        update = reshare(head, rest) if reshare is not None else {}
        return self._rewrite(head, rest, {}, update, f"unlearn task {gone.id}")

    def unlearn_class(
        self,
        name: str,
        *,
        without_class: Callable[[TaskDraft, str], TaskDraft | None],
        reshare: Callable[[BankVersion, tuple[TaskRecord, ...]], SharedUpdate] | None = None,
    ) -> BankVersion:
        """A new version without a class.

        ``without_class(draft, name)`` is called for each task that has the class, with its stored arrays, and
        returns the task without it (arrays, classes and definition), or None to drop the task.  A task whose only
        class this is, is dropped without asking.

        Raises:
            BankError: no task has the class, or the returned draft has another id or still has the class.
        """
        head = self._existing_head()
        if name not in head.classes:
            raise BankError(
                f"version {head.version} of bank '{self.bank.name}' has no class '{name}'"
            )
        rest: list[TaskRecord] = []
        objects: dict[str, bytes] = {}
        for record in head.tasks:
            if name not in record.classes:
                rest.append(record)
                continue
            draft = without_class(draft_of(head, record), name) if len(record.classes) > 1 else None
            if draft is None:
                continue
            if draft.id != record.id or name in draft.classes:
                raise BankError(
                    f"task '{record.id}' still has class '{name}', or has changed its id"
                )
            changed, encoded = prepare(draft)
            rest.append(changed)
            objects.update(encoded)
        update = reshare(head, tuple(rest)) if reshare is not None else {}
        return self._rewrite(head, tuple(rest), objects, update, f"unlearn class {name}")

    def adopt(
        self,
        *,
        tasks: Sequence[TaskRecord],
        shared: Mapping[str, ObjectRef],
        backbone: JsonObject,
        settings: JsonObject,
        defaults: JsonObject,
        metrics: JsonObject,
        operation: str,
        origin: JsonObject,
    ) -> BankVersion:
        """The first version of this bank, with content whose objects are here already (a fork, an import).

        Raises:
            BankError: the bank has a version.
        """
        if self.head() is not None:
            raise BankError(f"bank '{self.bank.name}' exists already: choose another name")
        return self._publish(
            tasks=tuple(tasks),
            shared=dict(shared),
            backbone=backbone,
            settings=settings,
            defaults=defaults,
            metrics=metrics,
            operation=operation,
            origin=origin,
        )

    # -- names and notes -------------------------------------------------------------------------------------

    def tag(self, name: str, ref: str | int = LATEST) -> int:
        """Points a name at a version and returns its number; a name that exists is moved.

        Raises:
            BankError: the name cannot be a tag, or there is no such version.
        """
        if check_name("tag", name) == LATEST or name.isdecimal():
            raise BankError(
                f"'{name}' cannot be a tag: 'latest' and numbers already mean a version"
            )
        manifest = self.bank.read_manifest(self.bank.resolve(ref))
        self._lock.check()
        self._point(name, manifest)
        return manifest.version

    def untag(self, name: str) -> None:
        """Removes a tag; the version stays.

        Raises:
            BankError: there is no such tag.
        """
        self._lock.check()
        if name == LATEST or not self.bank.storage.delete(self.bank.ref_path(name)):
            there = ", ".join(tag for tag in self.bank.refs() if tag != LATEST) or "none"
            raise BankError(f"bank '{self.bank.name}' has no tag '{name}'; tags: {there}")

    def annotate(self, metrics: Mapping[str, Any], ref: str | int = LATEST) -> BankVersion:
        """Adds metrics to a version that exists; its digest does not change.

        Raises:
            BankError: there is no such version, or the metrics are not plain JSON.
        """
        number = self.bank.resolve(ref)
        notes = {**self.bank.read_notes(number), **plain("metrics", metrics)}
        self._lock.check()
        write_atomic(self.bank.storage, self.bank.notes_path(number), seal({"metrics": notes}))
        if self._fresh and self._head is not None and self._head.version == number:
            self._head = replace(self._head, manifest=self._head.manifest.with_metrics(notes))
            return self._head
        return self.bank.load(number)

    # -- how a version comes about ---------------------------------------------------------------------------

    def _rewrite(
        self,
        head: BankVersion,
        tasks: tuple[TaskRecord, ...],
        objects: Mapping[str, bytes],
        update: SharedUpdate,
        operation: str,
    ) -> BankVersion:
        shared_refs, shared_encoded = updated_shared(head, update)
        self._write_objects({**objects, **shared_encoded})
        return self._publish(
            tasks=tasks,
            shared=shared_refs,
            backbone=head.backbone,
            settings=head.settings,
            defaults=head.defaults,
            metrics={},
            operation=operation,
        )

    def _publish(
        self,
        *,
        tasks: tuple[TaskRecord, ...],
        shared: dict[str, ObjectRef],
        backbone: JsonObject,
        settings: JsonObject,
        defaults: JsonObject,
        metrics: JsonObject,
        operation: str,
        origin: JsonObject | None = None,
    ) -> BankVersion:
        """Writes pages, manifest and hint; objects are there already."""
        head = self.head()
        self._fresh = False  # until this succeeds, the storage knows better
        pages = write_pages(self.bank.objects, head, tasks)
        manifest = Manifest(
            version=head.version + 1 if head else 1,
            parent=head.version if head else None,
            parent_digest=head.digest if head else None,
            digest=content_digest(backbone=backbone, settings=settings, shared=shared, tasks=tasks),
            backbone=backbone,
            settings=settings,
            pages=pages,
            shared=shared,
            counts=self._count(head, tasks, shared),
            defaults=defaults,
            metrics=metrics,
            operation=operation,
            origin=origin,
            created=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            writer=_signature(LockOwner.me(self._run)),
            code=self._code,
        )
        self._lock.check()
        path = self.bank.manifest_path(manifest.version)
        if not write_exclusive(self.bank.storage, path, manifest.to_bytes()):
            self._lock.check()
            raise BankError(
                f"version {manifest.version} of bank '{self.bank.name}' appeared although this run holds the "
                "lock; run the same command again, it goes on from there"
            )
        self._point(LATEST, manifest)
        version = BankVersion(self.bank, manifest, tasks)
        self._set_head(version)
        return version

    def _write_objects(self, objects: Mapping[str, bytes]) -> None:
        for digest, data in objects.items():
            if digest not in self._known:
                self.bank.objects.write(data)

    def _point(self, name: str, manifest: Manifest) -> None:
        data = Ref(manifest.version, manifest.digest).to_bytes()
        write_atomic(self.bank.storage, self.bank.ref_path(name), data)

    def _count(
        self,
        head: BankVersion | None,
        tasks: tuple[TaskRecord, ...],
        shared: Mapping[str, ObjectRef],
    ) -> JsonObject:
        """Tasks, classes and object bytes of a version; names of classes that are there are not gone through again."""
        have = head.tasks if head is not None else ()
        if tasks[: len(have)] == have:
            added = {name for task in tasks[len(have) :] for name in task.classes}
            classes = len(self._classes) + len(added - self._classes)
        else:
            classes = len({name for task in tasks for name in task.classes})
        size = sum(task.size for task in tasks) + sum(ref.size for ref in shared.values())
        return {"tasks": len(tasks), "classes": classes, "bytes": size}

    def _set_head(self, head: BankVersion | None) -> None:
        have = self._head.tasks if self._head is not None else ()
        tasks = head.tasks if head is not None else ()
        if tasks[: len(have)] != have:
            have = ()
            self._known.clear()
            self._classes.clear()
        for task in tasks[len(have) :]:
            self._known.update(ref.digest for ref in task.objects.values())
            self._classes.update(task.classes)
        if head is not None:
            self._known.update(ref.digest for ref in head.manifest.shared.values())
        self._head = head
        self._fresh = True

    def _existing_head(self) -> BankVersion:
        head = self.head()
        if head is None:
            raise BankError(f"bank '{self.bank.name}' has no version yet")
        return head

    def _made_with(self, head: BankVersion | None) -> tuple[JsonObject, JsonObject]:
        if self._begun is not None:
            return self._begun
        if head is None:
            raise BankError(
                f"bank '{self.bank.name}' is new: say with `begin` what it is made with"
            )
        return head.backbone, head.settings


def _signature(owner: LockOwner) -> JsonObject:
    return {"user": owner.user, "host": owner.host, "pid": owner.pid, "run": owner.run}
