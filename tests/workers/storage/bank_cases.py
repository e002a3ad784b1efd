"""Small banks to test with, and a storage that dies at any chosen step."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import pytest

from workers.errors import StorageError
from workers.storage.bank import Bank
from workers.storage.bank_draft import TaskDraft
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

WIDTH = 8
BACKBONE = {"name": "demo_vit", "fingerprint": "f" * 16, "width": WIDTH}
SETTINGS = {"luca": {"flow": "tosca", "ratio": 4}, "learning": {"epochs": 2, "l1": 5e-4}}


def draft(
    number: int, *, count: int = 2, samples: int = 5, seed: int = 0, **changed: Any
) -> TaskDraft:
    """Task ``number``: modules of width 8, ``count`` classes of ``samples`` training samples each."""
    random = np.random.default_rng((seed, number))
    names = tuple(f"class-{number * count + i}" for i in range(count))
    fields: dict[str, Any] = {
        "id": f"task-{number}",
        "name": f"Task {number}",
        "classes": names,
        "definition": {
            "classes": list(names),
            "counts": {name: {"train": samples, "validation": 0} for name in names},
            "samples_digest": f"{number:032x}",
        },
        "arrays": {
            "module": {
                "mlp.0.weight": random.normal(size=(2, WIDTH)).astype(np.float32),
                "mlp.2.weight": random.normal(size=(WIDTH, 2)).astype(np.float32),
            },
            "head": {"weight": random.normal(size=(count, WIDTH)).astype(np.float32)},
            "statistics": {
                "count": np.full(count, samples),
                "sum": random.normal(size=(count, WIDTH)),
            },
        },
        "info": {"samples": count * samples, "losses": [0.5, 0.25]},
    }
    return TaskDraft(**{**fields, **changed})


def fill(storage: Storage, name: str = "b", tasks: int = 3, **options: Any) -> Bank:
    """A bank with that many tasks, one version each."""
    bank = Bank.open_or_create(storage, name)
    with BankWriter(bank, **options) as writer:
        writer.begin(BACKBONE, SETTINGS)
        for number in range(tasks):
            shared = (
                {"whitening": {"mean": np.arange(WIDTH, dtype=np.float64)}} if number == 0 else None
            )
            writer.commit(draft(number), shared=shared, metrics={"accuracy": number / 10})
    return bank


def files(storage: Storage) -> dict[str, bytes]:
    """Every file of a storage and its bytes, without lock files."""
    return {
        entry.path: storage.read_bytes(entry.path)
        for entry in storage.list("", recursive=True)
        if not entry.is_directory and "/lock/" not in entry.path
    }


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> Iterator[None]:
    """No fsync: these tests stop processes, not the machine.  test_atomic.py checks that it is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


class Crash(BaseException):
    """The process ends here.  Not an Exception: nothing may handle it."""


class FaultyStorage(Storage):
    """A local storage whose process dies at step ``at`` of those that change files, or whose disk is full from then.

    ``how`` is "torn" for a crash before the step, or half-way when it writes bytes, and "full" for a disk on which
    nothing can be created any more, though files can still be deleted.  A crash after a step is one before the next.
    """

    def __init__(self, root: str, at: int, how: str) -> None:
        super().__init__(root, None, root)
        self._at = at
        self._how = how
        self.steps = 0
        self.dead = False

    def _step(self, act: Callable[[], Any], torn: Callable[[], Any] | None = None) -> Any:
        if self.dead:
            raise Crash
        self.steps += 1
        if self.steps < self._at or (self._how != "full" and self.steps > self._at):
            return act()
        if self._how == "full":
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StorageError(
                f"{self.root} cannot be written: {os.strerror(error.errno)}"
            ) from error
        self.dead = True
        if torn is not None:
            torn()
        raise Crash

    def create_file(self, path: str, write: Callable[[BinaryIO], Any]) -> None:
        def torn() -> None:
            Storage.create_file(self, path, write)
            os.truncate(self.full_path(path), os.path.getsize(self.full_path(path)) // 2)

        self._step(lambda: Storage.create_file(self, path, write), torn)

    def rename(self, source: str, target: str) -> None:
        self._step(lambda: Storage.rename(self, source, target))

    def link(self, source: str, target: str) -> bool:
        return bool(self._step(lambda: Storage.link(self, source, target)))

    def make_directory(self, directory: str) -> None:
        self._step(lambda: Storage.make_directory(self, directory))

    def sync_directory(self, directory: str) -> None:
        self._step(lambda: Storage.sync_directory(self, directory))

    def touch(self, path: str) -> None:
        self._step(lambda: Storage.touch(self, path))

    def delete(self, path: str) -> bool:
        if self._how == "full":
            return Storage.delete(self, path)
        return bool(self._step(lambda: Storage.delete(self, path)))
