"""Carrying out a plan of kills on a run, and starting the same command again until it ends well."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.chaos.processes import ACTORS, actors, kill
from tests.chaos.runs import Finished, Invocation, Place, only_bank, versions

DRIVER = {"driver": signal.SIGKILL, "stop": signal.SIGTERM}
"""What may happen to the driver."""


@dataclass(frozen=True)
class Kill:
    """One kill of a plan: ``delay`` seconds after the bank has ``version`` versions.

    ``kind`` is an actor's, "driver", "node", or "stop", which is a SIGTERM to the driver.  A driver may be hit before
    there is anything, so with ``version`` 0 its delay counts from the start of the command.  With ``working`` the victim is an actor in the middle of a call.
    """

    kind: str
    version: int
    delay: float = 0.0
    working: bool = False


@dataclass(frozen=True)
class Killed:
    """A kill that hit: which method the actor was in ("" when it waited), and how many versions there were."""

    kind: str
    doing: str
    versions: int
    seconds: float


class Nodes(Protocol):
    """A cluster that can lose a node."""

    def lose(self, rng: random.Random) -> str:
        """Kill a node and everything on it, start another one; says what ran there."""
        ...


@dataclass
class Endured:
    """What a run under kills came to.

    Attributes:
        outlived: seconds that actors of a killed driver went on for, at most.
    """

    finished: Finished
    killed: list[Killed] = field(default_factory=list)
    commands: int = 0
    seconds: float = 0.0
    outlived: float = 0.0


def plan_kills(
    rng: random.Random, kinds: Sequence[str], *, count: int, last_version: int
) -> list[Kill]:
    """A seeded plan: random kinds at random moments, in order of the bank's versions."""
    moments = sorted(rng.randrange(last_version) for _ in range(count))
    plan = []
    for version in moments:
        kind = rng.choice(list(kinds))
        longest = 12.0 if kind in DRIVER and version == 0 else 0.6
        plan.append(Kill(kind, version, rng.uniform(0, longest), working=rng.random() < 0.5))
    return plan


class Killer:
    """Carries out a plan, kill by kill, while something runs below this process.

    Args:
        plan: carried out in order; what finds no victim before the run ends is dropped.
        storage: where the run's only bank is.
        nodes: where nodes are lost.
        rng: chooses among several victims.
    """

    def __init__(
        self,
        plan: Sequence[Kill],
        storage: Path,
        *,
        nodes: Nodes | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.left = list(plan)
        self.killed: list[Killed] = []
        self._storage = storage
        self._nodes = nodes
        self._rng = rng or random.Random(0)

    def work(
        self, running: Callable[[], bool], hit_driver: Callable[[str], None] | None = None
    ) -> bool:
        """Go on with the plan while ``running()``; whether the driver was hit, which ends it."""
        began = time.monotonic()
        reached: float | None = None
        while running():
            time.sleep(0.02)
            if not self.left or self._versions() < self.left[0].version:
                continue
            planned = self.left[0]
            if reached is None:
                early = planned.kind in DRIVER and planned.version == 0
                reached = began if early else time.monotonic()
            if time.monotonic() - reached < planned.delay:
                continue
            doing = self._hit(planned, hit_driver)
            if doing is None:
                continue
            self.left.pop(0)
            reached = None
            seconds = time.monotonic() - began
            self.killed.append(Killed(planned.kind, doing, self._versions(), seconds))
            if planned.kind in DRIVER:
                return True
        return False

    def _versions(self) -> int:
        return versions(self._storage, only_bank(self._storage))

    def _hit(self, planned: Kill, hit_driver: Callable[[str], None] | None) -> str | None:
        """What the victim was doing, or None when there is none now."""
        if planned.kind in DRIVER:
            assert hit_driver is not None
            hit_driver(planned.kind)
            return ""
        if planned.kind == "node":
            assert self._nodes is not None
            if not any(actors(os.getpid(), kind) for kind in ACTORS):
                return None
            return self._nodes.lose(self._rng)
        found = actors(os.getpid(), planned.kind)
        if planned.working:
            found = [one for one in found if one.doing not in ("", "__init__")]
        if not found:
            return None
        victim = self._rng.choice(sorted(found, key=lambda one: one.pid))
        return victim.doing if kill(victim) else None


@contextmanager
def killing(plan: Sequence[Kill], storage: Path) -> Iterator[Killer]:
    """Carry out a plan beside what is done inside, in this process."""
    killer = Killer(plan, storage)
    done = threading.Event()
    thread = threading.Thread(target=lambda: killer.work(lambda: not done.is_set()), daemon=True)
    thread.start()
    try:
        yield killer
    finally:
        done.set()
        thread.join()


def endure(
    place: Place,
    storage: Path,
    plan: Sequence[Kill],
    *options: str,
    nodes: Nodes | None = None,
    rng: random.Random | None = None,
    seconds: float = 600,
) -> Endured:
    """Run the command under a plan of kills, again whenever its driver was killed or stopped, to its end.

    Half of the time the next command starts at once and meets the dying processes of the one before.

    Raises:
        TimeoutError: one command takes longer than ``seconds``.
    """
    rng = rng or random.Random(0)
    began = time.monotonic()
    killer = Killer(plan, storage, nodes=nodes, rng=rng)
    endured = Endured(Finished(-1, "", ""), killer.killed)
    while True:
        invocation = place.start(storage, *options)
        endured.commands += 1
        try:
            killed = killer.work(_patience(invocation, seconds), _hit_driver(invocation))
            endured.finished = invocation.wait(seconds)
        except BaseException:
            invocation.end()
            raise
        if not killed:
            endured.seconds = time.monotonic() - began
            return endured
        if rng.random() < 0.5:
            dead = time.monotonic()
            while invocation.surviving_actors() and time.monotonic() - dead < 60:
                time.sleep(0.05)
            endured.outlived = max(endured.outlived, time.monotonic() - dead)


def _patience(invocation: Invocation, seconds: float) -> Callable[[], bool]:
    limit = time.monotonic() + seconds
    return lambda: invocation.running and time.monotonic() < limit


def _hit_driver(invocation: Invocation) -> Callable[[str], None]:
    def now(kind: str) -> None:
        invocation.below()
        invocation.popen.send_signal(DRIVER[kind])

    return now
