"""`luca report`: the report of a run, written again from the files in its folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from workers.errors import StorageError
from workers.storage.filesystem import Storage


def report_command(run: str, *, storage: str) -> None:
    """Write the report again and print the tables.

    Args:
        run: a run's folder, or its id in the storage.
        storage: where runs lie.

    Raises:
        StorageError: there is no such run; names those there are.
    """
    from rich.console import Console

    from orchestrator.report import build_report, load_report
    from orchestrator.report.tables import print_report

    folder = find_run(run, storage)
    path = build_report(folder)
    print_report(load_report(folder), Console())
    sys.stdout.write(f"report: {path}\n")


def find_run(run: str, storage: str) -> Path:
    """The folder of a run given by path or id.

    Raises:
        StorageError: there is no such run; names those there are.
    """
    if os.path.isdir(run):
        return Path(run)
    opened = Storage.open(storage)
    runs = opened.local_path("runs") if opened.is_local else Path("luca-runs")
    if "/" not in run and run not in ("", ".", "..") and os.path.isdir(runs / run):
        return runs / run
    entries = runs.iterdir() if os.path.isdir(runs) else ()
    there = sorted(f.name for f in entries if f.is_dir() and not f.name.startswith("."))
    listed = ", ".join(there[-10:]) if there else "none yet"
    raise StorageError(f"there is no run {run!r} in {runs}: runs there are {listed}")
