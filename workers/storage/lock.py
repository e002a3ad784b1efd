"""One writer at a time, on any filesystem, with takeover of a dead owner's lock.

Nothing but put, list and delete is needed, so it works on object stores too.  A contender writes a *claim* under
a name of its own, then lists the claims.  Only if every other claim is dead does it hold the lock; otherwise it
withdraws.  Of two contenders the one that lists later sees the other's claim, so two can never both win.  A dead
claim is removed by its own unique name, so a takeover can never remove a live one.

An owner on this machine is dead when its process is gone (or its number belongs to a later process).  An owner on
another machine is dead when its heartbeat, a second file that only tells time, is older than ``lease`` seconds by
the storage's clock.  An owner that was merely asleep finds its claim gone: :meth:`BankLock.check`.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import random
import secrets
import socket
import threading
import time
import weakref
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from workers.errors import BankLockedError, StorageError
from workers.storage.atomic import write_atomic
from workers.storage.faults import fault
from workers.storage.filesystem import Storage

_CLAIM = ".claim"
_BEAT = ".beat"
_TIES = 40


@dataclass(frozen=True)
class LockOwner:
    """Who holds a lock.  ``machine`` names one boot of one process-number space; ``born`` is the process's start."""

    user: str
    host: str
    machine: str
    pid: int
    born: str
    run: str
    started: str

    @classmethod
    def me(cls, run: str) -> LockOwner:
        """This process."""
        return cls(
            user=_user(),
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            born=process_birth(os.getpid()) or "",
            run=run,
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def __str__(self) -> str:
        run = f" run {self.run}" if self.run else ""
        return f"{self.user}@{self.host} pid {self.pid}{run} started {self.started}"


@dataclass(frozen=True)
class _Claim:
    nonce: str
    owner: LockOwner | None
    """None when the claim cannot be read: then only its heartbeat counts."""
    holds: bool
    last_sign: float


class BankLock:
    """The right to write below one directory of a storage.

    Usable as a context manager.  A lock that is garbage-collected, or whose process ends normally, is released.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        *,
        what: str,
        run: str = "",
        lease: float = 60.0,
        heartbeat: float = 10.0,
    ) -> None:
        """``what`` is named in messages, such as "bank 'birds'"; claims lie in ``directory``."""
        self._storage = storage
        self._directory = directory
        self._what = what
        self._run = run
        self._lease = lease
        self._heartbeat = heartbeat
        self._nonce: str | None = None
        self._pulse: _Pulse | None = None
        self._finalizer: weakref.finalize[..., BankLock] | None = None

    @property
    def held(self) -> bool:
        """Whether this object acquired the lock and has not released it; :meth:`check` asks the storage."""
        return self._nonce is not None

    def __enter__(self) -> BankLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, wait: float = 0.0) -> None:
        """Takes the lock, waiting up to ``wait`` seconds for a living owner to let go.

        Raises:
            BankLockedError: a living owner holds it; the message names it.
            StorageError: the claim cannot be written.
        """
        if self.held:
            return
        deadline = time.monotonic() + wait
        ties = 0
        while True:
            rivals = self._attempt()
            if not rivals:
                return
            holders = [rival for rival in rivals if rival.holds]
            if not holders:
                ties += 1
            if time.monotonic() >= deadline and (holders or ties > _TIES):
                raise BankLockedError(self._refusal((holders or rivals)[0]))
            time.sleep(random.uniform(0.2, 1.0) * (0.2 if holders else 0.05))

    def _attempt(self) -> list[_Claim]:
        """Claims, looks around, and either holds the lock (no rivals) or withdraws."""
        nonce = secrets.token_hex(16)
        claim = self._path(nonce, _CLAIM)
        owner = json.dumps(asdict(LockOwner.me(self._run))).encode()
        try:
            self._write_claim(claim, owner)
            written = self._storage.info(claim)
            now = written.modified if written is not None else 0.0
            living: list[_Claim] = []
            dead: list[_Claim] = []
            for rival in _claims(self._storage, self._directory):
                if rival.nonce != nonce:
                    (living if _alive(rival, now, self._lease) else dead).append(rival)
            for corpse in dead:
                _remove(self._storage, self._directory, corpse.nonce)
            if living:
                self._storage.delete(claim)
                return living
            self._storage.touch(self._path(nonce, _BEAT))
        except BaseException:
            with contextlib.suppress(StorageError):
                _remove(self._storage, self._directory, nonce)
            raise
        self._nonce = nonce
        self._pulse = _Pulse(self._storage, self._path(nonce, _BEAT), self._heartbeat)
        self._finalizer = weakref.finalize(
            self, _release, self._storage, self._directory, nonce, self._pulse, os.getpid()
        )
        return []

    def _write_claim(self, claim: str, owner: bytes) -> None:
        try:
            write_atomic(self._storage, claim, owner)
        except StorageError as error:
            if error.__cause__ is None:
                raise
            # A claim's name is random: the folder of claims is what a user can look at.
            where = f"{self._what} cannot be locked: {self._storage.describe(self._directory)}"
            raise fault(error.__cause__, "write", where) from error.__cause__

    def check(self) -> None:
        """Confirms with the storage that the lock is still held; called before anything becomes visible.

        Raises:
            BankLockedError: it was never acquired, was released, or was taken over while this process slept.
        """
        if self._nonce is None or self._pulse is None:
            raise BankLockedError(f"{self._what} is not open for writing: acquire its lock first")
        if time.monotonic() - self._pulse.last > self._lease / 2:
            self._pulse.beat()
        if not self._storage.exists(self._path(self._nonce, _CLAIM)):
            owner = current_owner(self._storage, self._directory, lease=self._lease)
            by = f" by {owner}" if owner is not None else ""
            raise BankLockedError(
                f"the lock of {self._what} was taken over{by} while this process was unresponsive; "
                "nothing was written: run the same command again when the other is done"
            )

    def release(self) -> None:
        """Lets go; does nothing when not held."""
        self._nonce = None
        if self._finalizer is not None:
            self._finalizer()

    def _path(self, nonce: str, suffix: str) -> str:
        return f"{self._directory}/{nonce}{suffix}"

    def _refusal(self, rival: _Claim) -> str:
        owner = rival.owner or "an owner whose claim cannot be read"
        return (
            f"{self._what} is being written by {owner}; wait for it or end it. "
            f"If it died on another machine, its lock expires {self._lease:.0f} seconds after its last sign of life"
        )


class _Pulse:
    """A thread that touches the heartbeat file until stopped.  It cannot renew a claim, only its time."""

    def __init__(self, storage: Storage, path: str, interval: float) -> None:
        self._storage = storage
        self._path = path
        self._stop = threading.Event()
        self.last = time.monotonic()
        self._interval = interval
        threading.Thread(target=self._run, name="bank-lock-heartbeat", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            with contextlib.suppress(StorageError):  # check() beats again and reports what is wrong
                self.beat()

    def beat(self) -> None:
        before = time.monotonic()
        self._storage.touch(self._path)
        self.last = before

    def stop(self) -> None:
        self._stop.set()


def current_owner(storage: Storage, directory: str, *, lease: float = 60.0) -> LockOwner | None:
    """The living holder of the lock in ``directory``, for display; None when nobody holds it.

    Without a claim of its own to read the storage's clock from, it trusts this machine's.
    """
    for claim in _claims(storage, directory):
        if claim.holds and claim.owner is not None and _alive(claim, time.time(), lease):
            return claim.owner
    return None


def _claims(storage: Storage, directory: str) -> list[_Claim]:
    entries = {entry.name: entry for entry in storage.list(directory)}
    found = []
    for name, entry in entries.items():
        if not name.endswith(_CLAIM) or name.startswith("."):
            continue
        nonce = name[: -len(_CLAIM)]
        data = storage.read_if_exists(entry.path)
        if data is None:  # released since it was listed
            continue
        beat = entries.get(nonce + _BEAT)
        last = max(entry.modified, beat.modified if beat is not None else 0.0)
        found.append(_Claim(nonce, _parse_owner(data), beat is not None, last))
    return found


def _parse_owner(data: bytes) -> LockOwner | None:
    try:
        fields: Any = json.loads(data)
        owner = LockOwner(**fields)
    except (ValueError, TypeError):
        return None
    texts = (owner.user, owner.host, owner.machine, owner.born, owner.run, owner.started)
    return owner if isinstance(owner.pid, int) and all(isinstance(t, str) for t in texts) else None


def _alive(claim: _Claim, now: float, lease: float) -> bool:
    owner = claim.owner
    runs = process_runs(owner.machine, owner.pid, owner.born) if owner is not None else None
    return now - claim.last_sign < lease if runs is None else runs


def _remove(storage: Storage, directory: str, nonce: str) -> None:
    """Claim first: a heartbeat without a claim means nothing, a claim without one would look unfinished."""
    storage.delete(f"{directory}/{nonce}{_CLAIM}")
    storage.delete(f"{directory}/{nonce}{_BEAT}")


def _release(storage: Storage, directory: str, nonce: str, pulse: _Pulse, pid: int) -> None:
    pulse.stop()
    if os.getpid() == pid:  # a forked child must not give away its parent's lock
        with contextlib.suppress(StorageError):
            _remove(storage, directory, nonce)


def process_runs(machine: str, pid: int, born: str) -> bool | None:
    """Whether that process still runs, or None when it is another machine's, from where nobody can tell.

    ``machine`` and ``born`` are as in `LockOwner`; a later process with the same number is another one.
    """
    if machine != _machine():
        return None
    birth = process_birth(pid)
    return birth is not None and (birth == born or "" in (birth, born))


def process_birth(pid: int) -> str | None:
    """When a process of this machine started (clock ticks since boot on Linux), None when there is none alive.

    A zombie counts as dead.  Where /proc is missing, "" stands for "alive, start unknown".
    """
    if os.path.exists("/proc/self/stat"):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return ""
    return ""


def _machine() -> str:
    """One boot of one space of process numbers: containers on one host differ, a restarted host differs."""
    parts = [socket.gethostname()]
    with (
        contextlib.suppress(OSError),
        open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file,
    ):
        parts.append(file.read().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no such user in this container
        return f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
