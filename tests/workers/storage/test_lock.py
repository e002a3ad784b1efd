"""One writer at a time: refusals name the owner, the dead are replaced, and two takers never both win."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

import workers.storage.lock as lock_module
from workers.errors import BankLockedError
from workers.storage.filesystem import Storage
from workers.storage.lock import BankLock, LockOwner, current_owner, process_birth, process_runs

HOLD = """
import sys, time
from workers.storage.filesystem import Storage
from workers.storage.lock import BankLock
lock = BankLock(Storage.open(sys.argv[1]), "lock", what="bank 'b'", run="old-run")
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return Storage.open(str(tmp_path))
    return Storage.open((pafs._MockFileSystem(), "root"))


def make(storage: Storage, **options: Any) -> BankLock:
    return BankLock(storage, "lock", what="bank 'b'", **options)


def hold_elsewhere(root: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def pretend_owner(storage: Storage, **changed: Any) -> str:
    """A lock that is held, with a changed owner written over its claim."""
    other = make(storage, run="other-run")
    other.acquire()
    (claim,) = [entry.path for entry in storage.list("lock") if entry.name.endswith(".claim")]
    fields = {**json.loads(storage.read_bytes(claim)), **changed}
    storage.create_file(claim, lambda file: file.write(json.dumps(fields).encode()))
    other._nonce = None
    assert other._finalizer is not None
    assert other._pulse is not None
    other._pulse.stop()
    other._finalizer.detach()
    return claim


def test_a_second_writer_is_refused_with_the_owner_s_name(storage: Storage) -> None:
    with make(storage, run="week-long") as held:
        second = make(storage)
        with pytest.raises(BankLockedError) as caught:
            second.acquire()
        owner = LockOwner.me("week-long")
        assert f"bank 'b' is being written by {owner.user}@{owner.host} pid {os.getpid()}" in str(
            caught.value
        )
        assert "run week-long started 20" in str(caught.value)
        assert not second.held
        held.check()
    second.acquire()
    second.check()
    second.release()
    assert [entry for entry in storage.list("lock") if not entry.is_directory] == []


def test_the_owner_can_be_asked_for(storage: Storage) -> None:
    assert current_owner(storage, "lock") is None
    with make(storage, run="r"):
        owner = current_owner(storage, "lock")
        assert owner is not None
        assert (owner.run, owner.pid) == ("r", os.getpid())
    assert current_owner(storage, "lock") is None


def test_waiting_gets_the_lock_when_the_owner_lets_go(storage: Storage) -> None:
    import threading

    first, second = make(storage), make(storage)
    first.acquire()
    threading.Timer(0.3, first.release).start()
    second.acquire(wait=20)
    second.check()
    second.release()


def test_a_lock_that_is_dropped_is_let_go(storage: Storage) -> None:
    lock = make(storage)
    lock.acquire()
    del lock
    gc.collect()
    make(storage).acquire()


def test_an_owner_on_this_machine_is_dead_when_its_process_is(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    holder = hold_elsewhere(tmp_path)
    with pytest.raises(BankLockedError, match=f"pid {holder.pid} run old-run"):
        make(storage).acquire()
    os.kill(holder.pid, signal.SIGKILL)
    while process_birth(holder.pid) is not None:  # a zombie already counts as dead
        time.sleep(0.01)
    assert current_owner(storage, "lock") is None
    with make(storage) as taken:
        taken.check()
        assert len([e for e in storage.list("lock") if e.name.endswith(".claim")]) == 1
    holder.wait()


def test_a_process_that_ends_normally_lets_go(tmp_path: Path) -> None:
    program = HOLD.replace("time.sleep(60)", "")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True)
    assert Storage.open(str(tmp_path)).list("lock") == []


def test_a_stopped_owner_on_this_machine_keeps_its_lock_however_long(tmp_path: Path) -> None:
    holder = hold_elsewhere(tmp_path)
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        with pytest.raises(BankLockedError):
            make(Storage.open(str(tmp_path)), lease=0.0).acquire()
    finally:
        holder.kill()
        holder.wait()


def test_a_process_number_used_again_is_another_process(storage: Storage) -> None:
    pretend_owner(storage, born="1")
    with make(storage) as taken:
        taken.check()


def test_an_owner_elsewhere_is_alive_while_its_heartbeat_is_young(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    claim = pretend_owner(storage, machine="elsewhere", host="node-7")
    with pytest.raises(BankLockedError, match=r"@node-7 .* expires 60 seconds after"):
        make(storage).acquire()
    old = time.time() - 61
    os.utime(tmp_path / claim, (old, old))
    with pytest.raises(BankLockedError, match="@node-7"):
        make(storage).acquire()
    beat = claim.replace(".claim", ".beat")
    os.utime(tmp_path / beat, (old, old))
    with make(storage) as taken:
        taken.check()
        assert not storage.exists(claim)
        assert not storage.exists(beat)


def test_a_heartbeat_keeps_a_lock_alive_and_cannot_bring_it_back(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    slow = make(storage, heartbeat=0.02)
    slow.acquire()
    (beat,) = [entry for entry in storage.list("lock") if entry.name.endswith(".beat")]
    os.utime(tmp_path / beat.path, (1, 1))
    deadline = time.monotonic() + 10
    while storage.info(beat.path).modified < 2 and time.monotonic() < deadline:  # type: ignore[union-attr]
        time.sleep(0.01)
    assert storage.info(beat.path).modified > 2  # type: ignore[union-attr]
    storage.delete(beat.path.replace(".beat", ".claim"))
    time.sleep(0.1)
    with pytest.raises(BankLockedError, match="taken over"):
        slow.check()
    with make(storage) as other:
        other.check()
        time.sleep(0.1)
        with pytest.raises(BankLockedError, match="taken over by"):
            slow.check()
        slow.release()
        other.check()


def test_a_claim_that_cannot_be_read_counts_by_its_age(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    claim = pretend_owner(storage, pid="not a number")
    with pytest.raises(BankLockedError, match="cannot be read"):
        make(storage).acquire()
    for name in os.listdir(tmp_path / "lock"):
        os.utime(tmp_path / "lock" / name, (1, 1))
    make(storage).acquire()
    assert not storage.exists(claim)


def test_a_contender_that_died_undecided_blocks_nobody(storage: Storage) -> None:
    claim = pretend_owner(storage, born="1")
    storage.delete(claim.replace(".claim", ".beat"))
    make(storage).acquire()


def test_a_forked_child_does_not_give_its_parent_s_lock_away(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    with make(storage) as held:
        child = get_context("fork").Process(target=gc.collect)
        child.start()
        child.join()
        held.check()
        held_files = storage.list("lock")
        assert len(held_files) == 2


def test_machines_with_another_process_number_space_are_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.open(str(tmp_path))
    with make(storage):
        monkeypatch.setattr(lock_module, "process_birth", lambda pid: None)
        monkeypatch.setattr(lock_module, "_machine", lambda: "another container of this host")
        with pytest.raises(BankLockedError):
            make(storage).acquire()


def _contend(root: str, barrier: Any, seconds: float, results: Any) -> None:
    """Takes the lock again and again, each time checking that nobody else is inside."""
    storage = Storage.open(root)
    inside = Path(root) / "inside"
    barrier.wait()
    end, taken, collisions = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        lock = make(storage)
        try:
            lock.acquire(wait=0.2)
        except BankLockedError:
            continue
        try:
            inside.touch(exist_ok=False)
        except FileExistsError:
            collisions += 1
        lock.check()
        time.sleep(0.002)
        inside.unlink(missing_ok=True)
        lock.release()
        taken += 1
    results.put((taken, collisions))


def test_racing_processes_are_never_inside_together(tmp_path: Path) -> None:
    context = get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    racers = [
        context.Process(target=_contend, args=(str(tmp_path), barrier, 2.0, results))
        for _ in range(4)
    ]
    for racer in racers:
        racer.start()
    outcomes = [results.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join()
    assert sum(collisions for _, collisions in outcomes) == 0
    assert sum(taken for taken, _ in outcomes) > 3


def _take_over(root: str, barrier: Any, results: Any, done: Any) -> None:
    lock = make(Storage.open(root))
    for _ in range(10):
        barrier.wait()
        try:
            lock.acquire()
            results.put(1)
        except BankLockedError:
            results.put(0)
        done.wait()
        if lock.held:  # as if killed: the claim stays, its owner is said to be dead
            nonce = lock._nonce
            assert lock._finalizer is not None
            assert lock._pulse is not None
            lock._pulse.stop()
            lock._finalizer.detach()
            claim = Path(root) / "lock" / f"{nonce}.claim"
            claim.write_text(json.dumps({**json.loads(claim.read_text()), "born": "1"}))
            lock = make(Storage.open(root))
        done.wait()


def test_of_racing_takers_exactly_one_replaces_a_dead_owner(tmp_path: Path) -> None:
    pretend_owner(Storage.open(str(tmp_path)), born="1")
    context = get_context("fork")
    barrier, done, results = context.Barrier(4), context.Barrier(4), context.Queue()
    takers = [
        context.Process(target=_take_over, args=(str(tmp_path), barrier, results, done))
        for _ in range(4)
    ]
    for taker in takers:
        taker.start()
    outcomes = [[results.get(timeout=60) for _ in takers] for _ in range(10)]
    for taker in takers:
        taker.join()
    assert [sum(outcome) for outcome in outcomes] == [1] * 10


def test_a_process_is_known_by_its_machine_number_and_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    me = LockOwner.me("")
    assert process_runs(me.machine, me.pid, me.born) is True
    assert process_runs(me.machine, me.pid, "1") is False, "a later process has the number"
    assert process_runs("elsewhere", me.pid, me.born) is None
    monkeypatch.setattr(lock_module, "process_birth", lambda pid: "")
    assert process_runs(me.machine, me.pid, me.born) is True, "when it started cannot be known"
    monkeypatch.setattr(lock_module, "process_birth", lambda pid: None)
    assert process_runs(me.machine, me.pid, me.born) is False
