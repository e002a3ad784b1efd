"""Finding and killing the processes of one run: never by name alone, only descendants of a process we started."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TITLES = {
    "shard": "ray::DataShardImpl",
    "trainer": "ray::TrainerImpl",
    "registry": "ray::RegistryImpl",
    "evaluator": "ray::EvaluatorImpl",
}
"""How Ray names the worker process of each kind of actor; a dot and the method follow while it works."""

ACTORS = tuple(TITLES)


@dataclass(frozen=True)
class Process:
    """A living process: ``born`` in clock ticks since boot, so that a number used again is not mistaken."""

    pid: int
    parent: int
    born: str
    title: str

    @property
    def kind(self) -> str | None:
        """Which kind of actor it is, None for any other process."""
        name = self.title.split(".")[0]
        return next((kind for kind, title in TITLES.items() if name == title), None)

    @property
    def doing(self) -> str:
        """The method an actor is in, "" when it waits."""
        return self.title.partition(".")[2]


def process(pid: int) -> Process | None:
    """The process of this number, None when it is gone or only a zombie."""
    folder = Path("/proc") / str(pid)
    try:
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[1]), fields[19].decode(), title.strip())


def descendants(root: int) -> list[Process]:
    """Every living process below ``root``, itself left out."""
    everyone = [process(int(name)) for name in os.listdir("/proc") if name.isdecimal()]
    children: dict[int, list[Process]] = {}
    for one in everyone:
        if one is not None:
            children.setdefault(one.parent, []).append(one)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [one.pid for one in below]
    return found


def actors(root: int, kind: str) -> list[Process]:
    """The living actor processes of a kind below ``root``."""
    return [one for one in descendants(root) if one.kind == kind]


def kill(victim: Process) -> bool:
    """SIGKILL, if the number still belongs to that process; whether it did."""
    now = process(victim.pid)
    if now is None or now.born != victim.born:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, signal.SIGKILL)
        return True
    return False


def alive(one: Process) -> bool:
    """Whether it still runs."""
    now = process(one.pid)
    return now is not None and now.born == one.born


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Poll quickly until a condition holds.

    Raises:
        TimeoutError: it did not within the time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.02)
