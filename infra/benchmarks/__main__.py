"""Runs the benchmarks, each in a process of its own, prints one table and writes one JSON file.

python -m infra.benchmarks                 about two minutes on a quiet machine
python -m infra.benchmarks --long          the sizes the figures in the documentation come from
python -m infra.benchmarks --only learning bank_inference
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BENCHMARKS = {
    "end_to_end": "whole run and re-run over one bare pass of the backbone",
    "published_loop": "backbone passes of the published loop over ours",
    "bank_inference": "prediction with a bank over the backbone's time",
    "learning": "steps per second over plain PyTorch",
    "router_statistics": "ridge candidates and sums over their plain forms",
    "evaluation_cost": "module scores computed as tasks go by",
    "feature_cache": "the feature cache against plain Arrow, and its memory",
    "overheads": "cold starts, Ray, one task's orchestration",
    "cluster_costs": "a task on one and on two nodes, and from submitting a job to its first task",
    "views": "augmented training views on the demo: accuracy, time, cache",
    "recipes": "validation accuracy of recipes and routers over the package's streams",
}
LONG_ONLY = ("cluster_costs", "views", "recipes")
"""Run in long mode, or when named: they start clusters, or show results and not speed."""
QUIET_LOAD = 0.5
"""Load average a core up to which a machine counts as quiet."""


def main() -> int:
    """Run what is asked for; the exit status says whether every benchmark ran, not whether aims were met."""
    parser = argparse.ArgumentParser(prog="python -m infra.benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--long", action="store_true", help="larger sizes and more repetitions")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS)
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks.json"))
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.into is not None:
        _measure(arguments.only[0], arguments.into, long=arguments.long)
        return 0
    names = arguments.only or [n for n in BENCHMARKS if arguments.long or n not in LONG_ONLY]
    results = [_in_a_process(name, long=arguments.long) for name in names]
    report = {
        "mode": "long" if arguments.long else "short",
        "machine": _machine(),
        "benchmarks": results,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    _print(report)
    print(f"\nwritten to {arguments.out}")
    return 0 if all(result["error"] is None for result in results) else 1


def _measure(name: str, into: Path, *, long: bool) -> None:
    """In the benchmark's own process: measure, and leave the rows in a file."""
    rows = importlib.import_module(f"infra.benchmarks.{name}").run(long=long)
    into.write_text(json.dumps([row.to_json() for row in rows]))


def _in_a_process(name: str, *, long: bool) -> dict[str, Any]:
    print(f"{name}: {BENCHMARKS[name]} ...", file=sys.stderr, flush=True)
    environment = {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    began, load = time.perf_counter(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="luca-bench-") as folder:
        into = Path(folder, "rows.json")
        command = [sys.executable, "-m", "infra.benchmarks", "--only", name, "--into", str(into)]
        finished = subprocess.run(
            [*command, "--long"] if long else command,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        rows = json.loads(into.read_text()) if into.is_file() else []
    error = None
    if finished.returncode or not rows:
        error = "\n".join(finished.stderr.strip().splitlines()[-12:]) or "it left no result"
        print(error, file=sys.stderr)
    return {
        "name": name,
        "seconds": round(time.perf_counter() - began, 1),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "error": error,
        "rows": rows,
    }


def _machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    versions = {
        name: importlib.metadata.version(name) for name in ("torch", "timm", "ray", "pyarrow")
    }
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Benchmarks, {report['mode']} mode", show_lines=False)
    table.add_column("measured", overflow="fold", ratio=4)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("aim", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("note", overflow="fold", ratio=5)
    for result in report["benchmarks"]:
        busy = result["load_before"] > QUIET_LOAD * report["machine"]["cores"]
        title = f"[bold]{result['name']}[/] ({result['seconds']:.0f} s, load {result['load_before']:.1f} before)"
        table.add_row(title, "", "", "", "[yellow]the machine was busy[/]" if busy else "")
        if result["error"]:
            table.add_row(f"[red]failed[/]: {result['error'].splitlines()[-1]}", "", "", "", "")
        for row in result["rows"]:
            sign = "" if row["aim"] is None else ("≥ " if row["least"] else "≤ ")
            aim = f"{sign}{row['aim']:g}" if row["aim"] is not None else ""
            mark = {True: "[green]met[/]", False: "[red]not met[/]", None: ""}[row["met"]]
            table.add_row(
                f"  {row['what']}", f"{_number(row['value'])} {row['unit']}", aim, mark, row["note"]
            )
        table.add_section()
    Console(width=150 if not sys.stdout.isatty() else None).print(table)


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    if abs(value) < 0.1:
        return f"{value:.4f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
