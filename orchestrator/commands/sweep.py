"""`luca sweep`: search settings on cached features.  `luca run --from-sweep`: run what it chose."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence


def sweep_command(source: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Run a sweep, or go on with it, and print its table, or one JSON object."""
    from orchestrator.sweep.opening import Sweep
    from orchestrator.sweep.running import run_sweep

    sweep = Sweep.of(source, overrides)
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints there when a process dies
        outcome = run_sweep(sweep)
    if as_json:
        json.dump(outcome.result.to_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    from rich.console import Console

    from orchestrator.sweep.table import print_sweep

    console = Console()
    print_sweep(outcome.result, console)
    where = "" if source == "demo" else f" {source}"
    console.print(
        f"run it: luca run{where} --from-sweep {outcome.result.id}:smallest (or :best, or :TRIAL), with the "
        "same storage",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"page: {outcome.page}", highlight=False, soft_wrap=True)


def run_from_sweep(
    source: str, overrides: Sequence[str], wanted: str, *, as_json: bool, dry_run: bool
) -> None:
    """Run the experiment with settings that a sweep found; test samples are scored then, for the first time."""
    from orchestrator.commands.run import run_command
    from orchestrator.sweep.choosing import chosen_experiment

    path = chosen_experiment(source, overrides, wanted)
    run_command(str(path), overrides, as_json=as_json, dry_run=dry_run)
