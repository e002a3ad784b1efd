"""The registry actor: a bank's only writer.  State lives in storage; a restarted registry carries on from there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from workers.imports import spare_pandas
from workers.learned import Arrays, Committed, LearnedArrays, TaskHeader
from workers.storage.bank import Bank, BankVersion
from workers.storage.bank_draft import TaskDraft
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage
from workers.storage.lock import LockOwner

OWNER_GONE_SECONDS = 15.0
"""How long to wait for a former owner on this machine, which may just be dying with its driver."""

LEASE_SECONDS = 75.0
"""How long to wait for one on another machine: its heartbeat has to be found silent."""


class RegistryImpl:
    """Commits tasks in the order it is told, and tags versions.

    Args:
        storage: URI of the storage.
        bank: name of the bank.
        backbone: what computes the features; a bank keeps to one.
        settings: what modules are learned with; a bank keeps to them.
        run: named as the owner to anyone who is refused.
        code: the program's version, noted in manifests.
        defaults: settings that predictions with the new versions start from; None keeps what is noted.
    """

    def __init__(
        self,
        storage: str,
        bank: str,
        *,
        backbone: Mapping[str, Any],
        settings: Mapping[str, Any],
        run: str,
        code: str,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        spare_pandas()
        self._backbone, self._settings = dict(backbone), dict(settings)
        self._defaults = defaults
        self._bank = Bank.open_or_create(Storage.open(storage), bank)
        self._run, self._code = run, code
        self._writer: BankWriter | None = None

    def open(self) -> Committed | None:
        """Take the bank's lock; the newest version, or None for a new bank.

        Raises:
            BankLockedError: another run is writing this bank; the message names it.
            BankError: the bank was made with another backbone or other settings.
        """
        head = self._held().head()
        return None if head is None else _committed(head)

    def commit(
        self, header: TaskHeader, learned: LearnedArrays, whitening: Arrays | None = None
    ) -> Committed:
        """Add a learned task; the version that ends with it.  Committing it again changes nothing."""
        started = time.perf_counter()
        writer = self._held()
        shared: dict[str, Arrays] = {}
        if learned.head is not None:
            shared["head"] = learned.head
        if whitening is not None:
            shared["whitening"] = whitening
        draft = TaskDraft(
            id=header.id,
            name=header.name,
            domain=header.domain,
            classes=header.classes,
            definition=header.definition,
            arrays=learned.objects,
            info=header.info,
        )
        version = self._ending_with(header.id, writer.commit(draft, shared=shared))
        return _committed(version, time.perf_counter() - started)

    def _ending_with(self, task: str, newest: BankVersion) -> BankVersion:
        """The version that a task's commit made.

        Several commits may be under way.  When the registry dies, Ray repeats those whose answers were lost, and
        by then the newest version can hold tasks that came after.
        """
        ids = [record.id for record in newest.tasks]
        wanted = newest.tasks[: ids.index(task) + 1]
        if wanted == newest.tasks:
            return newest
        older = (self._bank.load(number) for number in reversed(self._bank.versions()))
        return next((version for version in older if version.tasks == wanted), newest)

    def annotate(self, version: int, metrics: Mapping[str, Any]) -> None:
        """Note what was measured of a version."""
        self._held().annotate(metrics, version)

    def tag(self, name: str, version: int) -> None:
        """Point a tag to a version."""
        self._held().tag(name, version)

    def close(self) -> None:
        """Let go of the lock."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _held(self) -> BankWriter:
        """The writer, with the lock; a restarted registry takes the lock of its former self over."""
        if self._writer is None:
            wait = patience(self._bank.owner(), here=OWNER_GONE_SECONDS)
            writer = BankWriter(self._bank, run=self._run, code=self._code, wait=wait).open()
            try:
                writer.begin(self._backbone, self._settings, defaults=self._defaults)
            except BaseException:
                writer.close()
                raise
            self._writer = writer
        return self._writer


def patience(owner: LockOwner | None, *, here: float) -> float:
    """Seconds to wait for a lock's owner: on another machine only a silent heartbeat tells that it is dead.

    Args:
        owner: None when nobody holds the lock.
        here: seconds for an owner on this machine.
    """
    elsewhere = owner is not None and owner.machine != LockOwner.me("").machine
    return LEASE_SECONDS if elsewhere else here


def _committed(version: BankVersion, seconds: float = 0.0) -> Committed:
    return Committed(version.version, version.digest, len(version.tasks), seconds)


def registry_class() -> Any:
    """The Ray actor class; Ray is imported only here."""
    import ray

    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(RegistryImpl)
