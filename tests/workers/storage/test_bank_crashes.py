"""A process that dies, or a disk that fills, at any step leaves the old version or the new one, whole."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workers.storage.bank_cases import (
    BACKBONE,
    SETTINGS,
    WIDTH,
    Crash,
    FaultyStorage,
    draft,
    files,
    fill,
    quick_disk,  # noqa: F401
)
from workers.errors import LucaError, StorageError
from workers.storage.bank import Bank
from workers.storage.bank_copy import export_version, fork_bank, import_version
from workers.storage.bank_gc import collect_garbage
from workers.storage.bank_verify import verify
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

Operation = Callable[[Storage], Any]


def commit(storage: Storage) -> None:
    with BankWriter(Bank.open(storage, "b")) as writer:
        writer.begin(BACKBONE, SETTINGS)
        writer.commit(draft(2), shared={"head": {"w": np.zeros(4)}}, metrics={"accuracy": 0.5})


def first_commit(storage: Storage) -> None:
    with BankWriter(Bank.open_or_create(storage, "new")) as writer:
        writer.begin(BACKBONE, SETTINGS)
        writer.commit(draft(0))


def rollback(storage: Storage) -> None:
    with BankWriter(Bank.open(storage, "b")) as writer:
        writer.rollback(1)


def unlearn(storage: Storage) -> None:
    with BankWriter(Bank.open(storage, "b")) as writer:
        head = writer.head()
        if head is not None and head.find("task-0") is not None:
            writer.unlearn_task(
                "task-0", reshare=lambda old, rest: {"whitening": {"mean": np.ones(WIDTH)}}
            )


def tag(storage: Storage) -> None:
    with BankWriter(Bank.open(storage, "b")) as writer:
        writer.tag("production", 1)


def annotate(storage: Storage) -> None:
    with BankWriter(Bank.open(storage, "b")) as writer:
        writer.annotate({"accuracy": 0.75})


def prune(storage: Storage) -> None:
    collect_garbage(Bank.open(storage, "b"), dry_run=False, keep_versions=1)


def fork(storage: Storage) -> None:
    if "fork" not in Bank.names(storage):
        fork_bank(Bank.open(storage, "b").load(), "fork")


def take_in(storage: Storage) -> None:
    if "imported" not in Bank.names(storage):
        import_version(storage, f"{storage.root}/export.safetensors", "imported")


OPERATIONS: list[Operation] = [
    commit, first_commit, rollback, unlearn, tag, annotate, prune, fork, take_in,
]  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with a bank of two tasks and an export of it; tests work on copies."""
    root = tmp_path_factory.mktemp("start")
    export_version(fill(Storage.open(str(root)), tasks=2).load(), root / "export.safetensors")
    return root


def copy(start: Path, root: Path) -> Storage:
    shutil.copytree(start, root)
    return Storage.open(str(root))


def state(storage: Storage) -> dict[str, Any]:
    """What a reader sees, everything read and checked."""
    seen: dict[str, Any] = {}
    for name in Bank.names(storage):
        bank = Bank.open(storage, name)
        refs = bank.refs()
        seen[name] = {"versions": bank.versions(), "refs": refs}
        for number in bank.versions():
            version = bank.load(number)
            for task in version.tasks:
                for kind in task.objects:
                    version.arrays(task, kind)
            seen[name][number] = (version.digest, sorted(version.shared), version.metrics)
    return seen


def died(storage: FaultyStorage, operation: Operation) -> bool:
    with contextlib.suppress(Crash):
        operation(storage)
    bury(storage.root)
    return storage.dead


def complaint(storage: FaultyStorage, operation: Operation) -> str | None:
    try:
        operation(storage)
    except StorageError as error:
        return str(error)
    return None


def bury(root: str) -> None:
    """The claims of a process that is this test's own: said to be dead, as after a real kill."""
    for claim in Path(root).glob("banks/*/lock/*"):
        claim.unlink()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_dying_at_any_step_leaves_the_old_state_or_the_new_and_running_again_finishes(
    tmp_path: Path, start: Path, operation: Operation
) -> None:
    before = state(Storage.open(str(start)))
    finished = copy(start, tmp_path / "after")
    operation(finished)
    after = state(finished)
    for step in range(1, 200):
        root = tmp_path / str(step)
        copy(start, root)
        faulty = FaultyStorage(str(root), step, "torn")
        if not died(faulty, operation):
            break
        storage = Storage.open(str(root))
        seen = state(storage)
        if operation is prune:  # several files go, one by one: every version that is left is whole
            assert set(before["b"]["versions"]) >= set(seen["b"]["versions"]) >= {2}
        else:
            assert seen in (before, after)
        for name in Bank.names(storage):
            assert verify(Bank.open(storage, name)).sound
        operation(storage)
        assert state(storage) == after
        for name in Bank.names(storage):
            collect_garbage(Bank.open(storage, name), dry_run=False)
        leftovers = [path for path in files(storage) if path.endswith(".tmp")]
        assert leftovers == []
    assert step > 3


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_a_disk_that_fills_at_any_step_is_one_sentence_and_leaves_the_bank(
    tmp_path: Path, start: Path, operation: Operation
) -> None:
    before = state(Storage.open(str(start)))
    finished = copy(start, tmp_path / "after")
    operation(finished)
    after = state(finished)
    for step in range(1, 200):
        root = tmp_path / str(step)
        copy(start, root)
        faulty = FaultyStorage(str(root), step, "full")
        message = complaint(faulty, operation)
        if message is None:
            break
        assert "no space left on device" in message.lower()
        storage = Storage.open(str(root))
        assert state(storage) in (before, after)
        assert [path for path in files(storage) if path.endswith(".tmp")] == []
        operation(storage)
        assert state(storage) == after
    if operation is not prune:  # deleting needs no space
        assert step > 3


def test_a_writer_that_failed_goes_on_when_there_is_space_again(tmp_path: Path) -> None:
    fill(Storage.open(str(tmp_path)), tasks=1)
    storage = FaultyStorage(str(tmp_path), 10**9, "full")
    failures = 0
    with BankWriter(Bank.open(storage, "b")) as writer:
        for step in range(1, 40):
            storage._at = storage.steps + step
            try:
                writer.commit(draft(step))
            except StorageError:
                failures += 1
            storage._at = 10**9
            writer.commit(draft(step))
    assert failures > 10
    bank = Bank.open(Storage.open(str(tmp_path)), "b")
    assert verify(bank).sound
    ids = [task.id for task in bank.load().tasks]
    assert len(ids) == len(set(ids))
    assert {f"task-{step}" for step in range(40)} <= set(ids)


WRITE = """
import sys
from tests.workers.storage.bank_cases import BACKBONE, SETTINGS, draft
from workers.storage.bank import Bank
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage
with BankWriter(Bank.open_or_create(Storage.open(sys.argv[1]), "b"), wait=5) as writer:
    writer.begin(BACKBONE, SETTINGS)
    print("open", flush=True)
    for number in range(int(sys.argv[2])):
        writer.commit(draft(number))
"""


def write_elsewhere(root: Path, tasks: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITE, str(root), str(tasks)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def test_a_writer_killed_again_and_again_reaches_the_digest_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    tasks, kills, chance = 30, 0, random.Random(0)
    with BankWriter(Bank.create(Storage.open(str(tmp_path / "calm")), "b")) as writer:
        writer.begin(BACKBONE, SETTINGS)
        for number in range(tasks):
            calm = writer.commit(draft(number))
    storage = Storage.open(str(tmp_path / "wild"))
    bank = Bank.open_or_create(storage, "b")
    while True:
        process = write_elsewhere(tmp_path / "wild", tasks)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.03))
        if kills < 5:
            os.kill(process.pid, signal.SIGKILL)
            kills += process.wait() != 0
        else:
            assert process.wait(timeout=60) == 0
        if process.returncode == 0 and kills == 5:
            break
        for number in bank.versions():
            bank.load(number)
    assert bank.load().digest == calm.digest
    assert bank.versions() == tuple(range(1, tasks + 1))
    assert verify(bank).sound


READ = """
import sys, time
from workers.errors import BankError
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage
bank = Bank.open(Storage.open(sys.argv[1]), "b")
seen, reads = 0, 0
print("reading", flush=True)
while seen < int(sys.argv[2]):
    try:
        version = bank.load()
        assert version.version >= seen, (version.version, seen)
        seen = version.version
        for task in version.tasks:
            for kind in task.objects:
                version.arrays(task, kind)
        version.shared
    except BankError as error:
        assert "removed while" in str(error) or "no version" in str(error), error
    reads += 1
print(reads)
"""


def test_readers_never_see_half_a_version_while_a_writer_commits_and_garbage_is_collected(
    tmp_path: Path,
) -> None:
    storage = Storage.open(str(tmp_path))
    bank = fill(storage, tasks=1)
    last = 40
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READ, str(tmp_path), str(last)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for _ in range(2)
    ]
    for reader in readers:
        assert reader.stdout is not None
        reader.stdout.readline()
    for number in range(2, last + 1):
        with BankWriter(bank, wait=5) as writer:
            if number % 5 == 0:
                writer.unlearn_task(writer.head().tasks[-1].id)  # type: ignore[union-attr]
            else:
                writer.commit(draft(number), shared={"head": {"w": np.full(number, 1.0)}})
        keep = None if number % 2 else 4
        collect_garbage(bank, dry_run=False, keep_versions=keep, wait=5)
        time.sleep(0.01)
    for reader in readers:
        output, errors = reader.communicate(timeout=60)
        assert reader.returncode == 0, errors
        assert int(output) > 3
    assert verify(bank).sound


CONTEND = """
import sys
from tests.workers.storage.bank_cases import BACKBONE, SETTINGS, draft
from workers.errors import BankLockedError
from workers.storage.bank import Bank
from workers.storage.bank_gc import collect_garbage
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage
bank = Bank.open_or_create(Storage.open(sys.argv[1]), "b")
for number in range(int(sys.argv[2]), 24, 3):
    with BankWriter(bank, wait=30) as writer:
        writer.begin(BACKBONE, SETTINGS)
        writer.commit(draft(number))
    collect_garbage(bank, dry_run=False, wait=30)
"""


def test_writers_that_take_turns_lose_nothing_while_each_collects_garbage(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", CONTEND, str(tmp_path), str(number)],
            cwd=Path(__file__).parents[3],
        )
        for number in range(3)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    bank = Bank.open(Storage.open(str(tmp_path)), "b")
    assert sorted(task.id for task in bank.load().tasks) == sorted(f"task-{i}" for i in range(24))
    assert bank.versions() == tuple(range(1, 25))
    assert verify(bank).sound


def test_a_writer_whose_lock_was_taken_over_refuses_to_commit(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    bank = fill(storage, tasks=1)
    sleeper = BankWriter(bank, run="sleeper").open()
    sleeper.begin(BACKBONE, SETTINGS)
    bury(str(tmp_path))
    with BankWriter(bank, run="taker") as taker:
        taker.commit(draft(1))
        for act in (
            lambda: sleeper.commit(draft(2)),
            lambda: sleeper.tag("x"),
            lambda: sleeper.rollback(1),
            lambda: sleeper.annotate({}),
            lambda: sleeper.untag("x"),
        ):
            with pytest.raises(LucaError, match=r"taken over by .* run taker"):
                act()
    sleeper.close()
    assert [task.id for task in bank.load().tasks] == ["task-0", "task-1"]
    assert set(bank.refs()) == {"latest"}


def test_a_number_that_somebody_else_took_is_never_overwritten(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    bank = fill(storage, tasks=1)
    with BankWriter(bank) as writer:
        writer.begin(BACKBONE, SETTINGS)
        foreign = storage.read_bytes(bank.manifest_path(1))
        storage.create_file(bank.manifest_path(2), lambda file: file.write(foreign))
        with pytest.raises(LucaError, match="version 2 of bank 'b' appeared although"):
            writer.commit(draft(1))
    assert storage.read_bytes(bank.manifest_path(2)) == foreign
