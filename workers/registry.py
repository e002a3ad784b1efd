"""The registry actor: a bank's only writer.  State lives in storage; a restarted registry carries on from there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from workers.learned import Arrays, Committed, LearnedArrays, TaskHeader
from workers.storage.bank import Bank, BankVersion
from workers.storage.bank_draft import TaskDraft
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

OWNER_GONE_SECONDS = 15.0
"""How long to wait for a former owner of the lock that may just be dying with its driver."""


class RegistryImpl:
    """Commits tasks in the order it is told, and tags versions.

    Args:
        storage: URI of the storage.
        bank: name of the bank.
        backbone: what computes the features; a bank keeps to one.
        settings: what modules are learned with; a bank keeps to them.
        run: named as the owner to anyone who is refused.
        code: the program's version, noted in manifests.
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
    ) -> None:
        self._backbone, self._settings = dict(backbone), dict(settings)
        self._bank = Bank.open_or_create(Storage.open(storage), bank)
        self._writer = BankWriter(self._bank, run=run, code=code, wait=OWNER_GONE_SECONDS)
        self._opened = False

    def open(self) -> Committed | None:
        """Take the bank's lock; the newest version, or None for a new bank.

        Raises:
            BankLockedError: another run is writing this bank; the message names it.
            BankError: the bank was made with another backbone or other settings.
        """
        head = self._begin()
        return None if head is None else _committed(head)

    def commit(
        self, header: TaskHeader, learned: LearnedArrays, whitening: Arrays | None = None
    ) -> Committed:
        """Add a learned task; committing it again changes nothing."""
        started = time.perf_counter()
        if not self._opened:
            self._begin()
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
        version = self._writer.commit(draft, shared=shared)
        return _committed(version, time.perf_counter() - started)

    def annotate(self, version: int, metrics: Mapping[str, Any]) -> None:
        """Note what was measured of a version."""
        if not self._opened:
            self._begin()
        self._writer.annotate(metrics, version)

    def tag(self, name: str, version: int) -> None:
        """Point a tag to a version."""
        if not self._opened:
            self._begin()
        self._writer.tag(name, version)

    def close(self) -> None:
        """Let go of the lock."""
        self._writer.close()
        self._opened = False

    def _begin(self) -> BankVersion | None:
        self._writer.open()
        self._opened = True
        return self._writer.begin(self._backbone, self._settings)


def _committed(version: BankVersion, seconds: float = 0.0) -> Committed:
    return Committed(version.version, version.digest, len(version.tasks), seconds)


def registry_class() -> Any:
    """The Ray actor class; Ray is imported only here."""
    import ray

    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(RegistryImpl)
