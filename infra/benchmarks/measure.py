"""Timing for a machine that is not ours alone: variants take turns, medians are reported, and load is written down."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: what was measured.
        value: the number.
        unit: "x" for ratios, otherwise a unit such as "ms".
        aim: the number to reach, or None where nothing was promised.
        least: whether ``aim`` is a lower bound (True) or an upper one.
        note: what makes the number understandable: sizes, the other side of the ratio.
    """

    what: str
    value: float
    unit: str = "x"
    aim: float | None = None
    least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the aim is reached; None without one."""
        if self.aim is None:
            return None
        return self.value >= self.aim if self.least else self.value <= self.aim

    def to_json(self) -> dict[str, Any]:
        """As plain data, with whether the aim is met."""
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True)
class Timing:
    """Seconds of one variant, a number a round: by the clock, and of this process's CPU time."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Median CPU seconds: on one thread that never waits, what the clock shows on a quiet machine."""
        return statistics.median(self.cpu)

    @property
    def wall_seconds(self) -> float:
        """Median seconds by the clock."""
        return statistics.median(self.wall)


def interleaved(
    variants: Mapping[str, Callable[[], Any]], *, rounds: int, warm: bool = True
) -> dict[str, Timing]:
    """Runs the variants in turn, ``rounds`` times, so that whatever else happens meets all of them alike."""
    if warm:
        for variant in variants.values():
            variant()
    wall: dict[str, list[float]] = {name: [] for name in variants}
    cpu: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        names = list(variants)
        for name in names if number % 2 == 0 else reversed(names):
            clock, process = time.perf_counter(), time.process_time()
            variants[name]()
            cpu[name].append(time.process_time() - process)
            wall[name].append(time.perf_counter() - clock)
    return {name: Timing(tuple(wall[name]), tuple(cpu[name])) for name in variants}


def ratio(over: Timing, under: Timing, *, wall: bool = False) -> float:
    """Median over rounds of the ratio within a round, which cancels what changes from round to round."""
    tops, bottoms = (over.wall, under.wall) if wall else (over.cpu, under.cpu)
    return statistics.median(top / bottom for top, bottom in zip(tops, bottoms, strict=True))


def one_thread() -> None:
    """What every worker process does: one thread, denormals flushed."""
    from workers.runtime import prepare_process

    prepare_process(1)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
