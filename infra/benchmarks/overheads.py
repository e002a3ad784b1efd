"""Overheads: cold commands, starting Ray, and what orchestrating one task of empty work costs."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from infra.benchmarks.measure import Row

LUCA = [sys.executable, "-m", "orchestrator.cli"]


def run(*, long: bool) -> list[Row]:
    """Cold processes by the clock, and their CPU time beside it."""
    return [*_commands(rounds=9 if long else 5), _ray(rounds=3 if long else 1), *_tasks(long=long)]


def _commands(*, rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="luca-bench-") as folder:
        luca = shutil.which(
            "luca", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        )
        start = [luca] if luca else LUCA
        commands = {
            "luca --help": ([*start, "--help"], 0.3),
            "luca bank list": ([*start, "bank", "list", "--storage", folder], 0.5),
            "an empty Python": ([sys.executable, "-c", "pass"], None),
        }
        wall: dict[str, list[float]] = {name: [] for name in commands}
        cpu: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds + 1):
            for name, (command, _) in commands.items():
                clock, process = time.perf_counter(), os.times()
                subprocess.run(command, check=True, capture_output=True)
                after = os.times()
                wall[name].append(time.perf_counter() - clock)
                cpu[name].append(
                    after.children_user
                    + after.children_system
                    - process.children_user
                    - process.children_system
                )
    return [
        Row(
            name,
            statistics.median(wall[name][1:]),
            "s",
            aim=aim,
            note=f"median of {rounds} cold processes; {statistics.median(cpu[name][1:]):.2f} s of CPU time",
        )
        for name, (_, aim) in commands.items()
    ]


def _ray(*, rounds: int) -> Row:
    code = (
        "import time; began = time.perf_counter()\n"
        "from pipelines.cluster import ClusterSettings, join_ray\n"
        "with join_ray(ClusterSettings(address='local')): print(time.perf_counter() - began)\n"
    )
    seconds = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], check=True, capture_output=True, text=True
            ).stdout
        )
        for _ in range(rounds)
    ]
    return Row(
        "starting a local Ray", statistics.median(seconds), "s", note="import of Ray included"
    )


def _tasks(*, long: bool) -> list[Row]:
    """Streams of tiny tasks through a whole run, in processes of their own."""
    rows, untested = [], {}
    few, many = (100, 1000) if long else (60, None)
    for tasks, tested in ((few, few), (few, 1), (many, 1)):
        if tasks is None:
            continue
        command = [sys.executable, "-m", "infra.benchmarks.orchestration", "--tasks", str(tasks)]
        output = subprocess.run(
            [*command, "--tested", str(tested)], check=True, capture_output=True, text=True
        ).stdout
        measured = json.loads(output.splitlines()[-1])
        memory = measured["driver_mib"]
        scored = "all tests so far" if tested > 1 else "the first task's test samples"
        rows.append(
            Row(
                f"one task of empty work among {tasks}, scored on {scored}",
                measured["milliseconds_per_task"],
                "ms",
                aim=20 if tested == 1 else None,
                note=f"extract, learn 1 epoch of 8 samples, commit, score; driver {memory[0]} MiB at first, "
                f"{memory[5]} half way, {memory[-1]} at the end",
            )
        )
        if tested == 1:
            untested[tasks] = measured
    if many is not None:
        times = [untested[tasks]["milliseconds_per_task"] for tasks in (few, many)]
        memory = untested[many]["driver_mib"]
        rows += [
            Row(
                f"one task among {many} over one among {few}", times[1] / times[0], note="flat is 1"
            ),
            Row(
                "driver memory near the end over a fifth of the way",
                memory[9] / memory[2],
                note=f"{many} tasks",
            ),
        ]
    return rows
