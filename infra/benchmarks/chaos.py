"""Runs under fire: seeded kills of every kind of process, and whether bank, metrics and predictions come out equal.

    python -m infra.benchmarks.chaos --runs 30 --seed 0

Small real streams (ready features with local and with unified heads, and the demo's images, few of each class) are run
undisturbed for reference.  Then every run is disturbed as its seed says: data shards, trainers, the registry and
evaluators are killed (SIGKILL) in the middle of a call or between two, the driver is killed or stopped (SIGTERM) and the same command
started again, whole simulated nodes are lost.  One JSON line a run, a table at the end; exit code 1 if anything differs.

What kills is that of ``tests/chaos``, so this runs from the root of the source tree alone, with the package installed
from there (``pip install -e .``); of the tests' own requirements none is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.endure import Endured, Kill, endure, plan_kills
from tests.chaos.nodes import SimulatedCluster, simulated_cluster
from tests.chaos.processes import ACTORS
from tests.chaos.runs import ENVIRONMENT, Outcome, Place, features_stream, pictures_stream, place

TASKS = 10
ORDER = (
    "actors",
    "driver",
    "node",
    "actors",
    "mixed",
    "actors",
    "pictures",
    "driver",
    "node",
    "mixed",
)
"""What is done to one run after the other, again from the front after the last."""

PLANS: Mapping[str, Sequence[tuple[Sequence[str], tuple[int, int]]]] = {
    "actors": [(ACTORS, (4, 8))],
    "driver": [(("driver",), (1, 2)), (("stop",), (0, 1))],
    "node": [(("node",), (1, 2)), (ACTORS, (0, 2))],
    "mixed": [(("driver", "stop"), (1, 2)), (ACTORS, (2, 4))],
    "pictures": [(("driver",), (0, 1)), (ACTORS, (3, 6))],
}
"""Kinds of victims and how many of them, by disturbance."""


@dataclass
class Tally:
    """What has been seen so far."""

    killed: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)
    commands: int = 0
    outlived: float = 0.0

    def add(self, run: Mapping[str, Any], endured: Endured) -> None:
        """Count one run."""
        self.runs[run["disturbance"]] += 1
        self.commands += endured.commands
        self.outlived = max(self.outlived, endured.outlived)
        for one in endured.killed:
            self.killed[one.kind] += 1
            if one.kind in ACTORS:
                self.methods[f"{one.kind} in {one.doing or 'waiting'}"] += 1
        if not run["equal"]:
            self.different.append(f"{run['seed']} ({run['disturbance']}, {run['stream']})")

    def table(self, seconds: float) -> str:
        """For people."""
        total = sum(self.killed.values())
        lines = [
            f"{sum(self.runs.values())} runs in {seconds:.0f} s, {total} kills survived, {self.commands} commands",
            f"  runs: {_counts(self.runs)}",
            f"  kills: {_counts(self.killed)}",
            f"  actors were killed: {_counts(self.methods)}",
            f"  actors outlived a killed driver by at most {self.outlived:.1f} s",
            f"  different digests, metrics or predictions: {', '.join(self.different) or 'none'}",
        ]
        return "\n".join(lines)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


def plan_of(disturbance: str, rng: random.Random) -> list[Kill]:
    """The kills of one run, by the bank's versions at which they come."""
    plan: list[Kill] = []
    for kinds, (least, most) in PLANS[disturbance]:
        plan += plan_kills(rng, kinds, count=rng.randint(least, most), last_version=TASKS - 1)
    return sorted(plan, key=lambda kill: kill.version)


def actors_of(rng: random.Random) -> list[str]:
    """Some number of actors of each kind: the result may not depend on it."""
    counts = {kind: rng.randint(1, 2) for kind in ("shards", "trainers", "evaluators")}
    counts["tasks_in_flight"] = rng.randint(1, 4)
    return [f"cluster.{name}={count}" for name, count in counts.items()]


class Streams:
    """The streams and their undisturbed outcomes, made when they are first needed."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._made: dict[str, tuple[Place, Outcome]] = {}
        self._makers: dict[str, Callable[[Path], dict[str, Any]]] = {
            "local": lambda f: features_stream(f, tasks=TASKS, width=160),
            "unified": lambda f: features_stream(f, tasks=TASKS, width=160, recipe="tosca"),
            "pictures": lambda _: pictures_stream(),
        }

    def get(self, name: str) -> tuple[Place, Outcome]:
        """Where a stream lies, and what it comes to undisturbed."""
        if name not in self._made:
            folder = self._folder / name
            made = self._stack.enter_context(place(folder, self._makers[name](folder)))
            began = time.monotonic()
            outcome = Outcome.of(made.run(folder / "undisturbed", seconds=900).summary)
            print(
                json.dumps(
                    {"undisturbed": name, "digest": outcome.digest, "seconds": _since(began)}
                ),
                flush=True,
            )
            self._made[name] = made, outcome
        return self._made[name]


def one_run(
    number: int, disturbance: str, streams: Streams, nodes: SimulatedCluster | None, seed: str
) -> tuple[dict[str, Any], Endured]:
    """Disturb one run; its record, and what happened."""
    rng = random.Random(seed)
    name = "pictures" if disturbance == "pictures" else ("local", "unified")[number % 2]
    made, expected = streams.get(name)
    options = actors_of(rng)
    if nodes is not None:
        options.append(f"cluster.address={nodes.address}")
    plan = plan_of(disturbance, rng)
    endured = endure(made, made.folder / f"run-{number}", plan, *options, nodes=nodes, rng=rng)
    outcome = Outcome.of(endured.finished.summary) if endured.finished.code == 0 else None
    record = {
        "seed": seed,
        "disturbance": disturbance,
        "stream": name,
        "kills": [
            f"{k.kind}@{k.versions}" + (f" in {k.doing}" if k.doing else "") for k in endured.killed
        ],
        "missed": len(plan) - len(endured.killed),
        "commands": endured.commands,
        "seconds": round(endured.seconds, 1),
        "digest": outcome.digest if outcome else None,
        "equal": outcome == expected,
    }
    if outcome is None:
        record["error"] = endured.finished.err[-2000:]
    return record, endured


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; 0 when every run came out equal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first run, to go on or repeat"
    )
    parser.add_argument("--only", choices=sorted(PLANS), help="one kind of disturbance alone")
    parser.add_argument("--keep", action="store_true", help="leave the storages behind")
    given = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)
    tally, began = Tally(), time.monotonic()
    with ExitStack() as stack:
        if given.keep:
            folder = Path(tempfile.mkdtemp(prefix="luca-chaos-"))
            print(f"storages: {folder}", file=sys.stderr)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="luca-chaos-")))
        streams = Streams(folder, stack)
        nodes: SimulatedCluster | None = None
        for number in range(given.first, given.first + given.runs):
            disturbance = given.only or ORDER[number % len(ORDER)]
            if disturbance == "node" and nodes is None:
                nodes = stack.enter_context(simulated_cluster())
            used = nodes if disturbance == "node" else None
            record, endured = one_run(number, disturbance, streams, used, f"{given.seed}-{number}")
            tally.add(record, endured)
            print(json.dumps(record), flush=True)
    print(tally.table(time.monotonic() - began))
    return 1 if tally.different else 0


if __name__ == "__main__":
    sys.exit(main())
