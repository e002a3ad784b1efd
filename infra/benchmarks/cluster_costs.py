"""What a cluster costs: a task of empty work on one and on two simulated nodes, and the way from submitting to the first task."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from infra.benchmarks.measure import Row


def run(*, long: bool) -> list[Row]:
    """Simulated nodes share this machine's cores, so two of them show what spreading costs and not what it gains."""
    return [*_nodes(tasks=100 if long else 30), *_jobs()]


def _nodes(*, tasks: int) -> list[Row]:
    rows, measured = [], {}
    for nodes in (1, 2):
        found = measured[nodes] = _measured(
            "orchestration", "--tasks", str(tasks), "--tested", "1", "--nodes", str(nodes)
        )
        memory = found["driver_mib"]
        rows.append(
            Row(
                f"one task of empty work among {tasks} on {nodes} simulated node{'s' if nodes > 1 else ''}",
                found["milliseconds_per_task"],
                "ms",
                note=f"first commit after {found['seconds_to_first_commit']} s, joining included; driver {memory[0]} MiB "
                f"at first, {memory[5]} half way, {memory[-1]} at the end",
            )
        )
    times = [measured[nodes]["milliseconds_per_task"] for nodes in (1, 2)]
    rows.append(Row("one task on two simulated nodes over one", times[1] / times[0]))
    return rows


def _jobs() -> list[Row]:
    first, second = _measured("submission")["jobs"]
    return [
        Row(
            f"from submitting to the first task, {which} on a head",
            found["first_version"],
            "s",
            note=f"accepted after {found['accepted']} s, driver's run begins after {found['driver']} s, job ends "
            f"after {found['end']} s",
        )
        for which, found in (("the first job", first), ("the next job", second))
    ]


def _measured(module: str, *arguments: str) -> Any:
    """What a benchmark that prints one JSON object says, in a process of its own."""
    command = [sys.executable, "-m", f"infra.benchmarks.{module}", *arguments]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])
