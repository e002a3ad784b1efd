"""`luca run`: learn a stream into a bank, score it, show the result."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from orchestrator import results
from orchestrator.experiment import Experiment
from orchestrator.experiment_files import load_experiment
from orchestrator.preparation import Prepared, prepare
from orchestrator.tracking import RunFinished, RunStarted, build_trackers
from workers.errors import LucaError
from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage


def run_command(
    source: str, overrides: Sequence[str], *, as_json: bool, dry_run: bool = False
) -> None:
    """Run an experiment and print its table, or one JSON object."""
    experiment = load_experiment(source, overrides)
    if dry_run:
        from orchestrator.commands.plan import print_plan

        print_plan(prepare(experiment), as_json=as_json)
        return
    summary = run_experiment(experiment)
    if as_json:
        json.dump(public_summary(summary), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print_table(summary)


def _print_table(summary: dict[str, Any]) -> None:
    """The result for people, on standard output, with where the report is."""
    from rich.console import Console

    from orchestrator.report.tables import print_summary

    console = Console()
    predictions = results.read_predictions(summary["run_dir"], results.METRIC_COLUMNS)
    print_summary(summary, predictions, console)
    console.print(
        f"bank {summary['bank']} version {summary['version']}, digest {summary['digest'][:16]}; "
        f"{summary['tasks_learned']} tasks learned, {summary['backbone_images']} images through the "
        "backbone in this invocation",
        highlight=False,
    )
    console.print(f"report: {summary['report']}", highlight=False, soft_wrap=True)


def public_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """What ``--json`` prints, NaN as null."""
    from orchestrator.tracking.events import json_value

    value: dict[str, Any] = json_value(summary)
    return value


def run_experiment(experiment: Experiment, *, console: bool = True) -> dict[str, Any]:
    """Run an experiment to its end and return its summary (see ``summary.json``).

    Raises:
        LucaError: one clear sentence; the bank holds what was committed and nothing half-written.
    """
    started = time.perf_counter()
    prepared = prepare(experiment)
    prepared_seconds = time.perf_counter() - started
    run_dir = prepared.run_dir
    with build_trackers(experiment.tracking, run_dir, console=console) as tracker:
        write_atomic(Storage.open(str(run_dir)), "experiment.yaml", experiment.to_yaml().encode())
        tracker.handle(
            RunStarted(
                experiment.run_id,
                experiment.name,
                experiment.bank_name,
                experiment.storage,
                prepared.describe_tasks(),
                experiment.model_dump(mode="json"),
                resumed=prepared.learned > 0,
            )
        )
        for warning in prepared.stream.warnings:
            tracker.notify(warning, "warning")
        try:
            summary = _learn_and_score(prepared, tracker, started, prepared_seconds)
        except LucaError as error:
            tracker.notify(str(error), "warning")
            tracker.handle(RunFinished("failed", time.perf_counter() - started))
            raise
        except KeyboardInterrupt:
            tracker.handle(RunFinished("stopped", time.perf_counter() - started))
            raise
        tracker.handle(RunFinished("finished", time.perf_counter() - started, summary))
    return summary


def _learn_and_score(
    prepared: Prepared, tracker: Any, started: float, prepared_seconds: float
) -> dict[str, Any]:
    from orchestrator.driver import Driver
    from pipelines.cluster import check_shared_storage, join_ray
    from pipelines.fleet import Fleet

    experiment = prepared.experiment
    ray_started = time.perf_counter()
    with join_ray(experiment.cluster, notify=tracker.notify) as ray_handle:
        ray_seconds = time.perf_counter() - ray_started
        check_shared_storage(experiment.storage)
        with Fleet(_fleet_spec(prepared), ray_handle, notify=tracker.notify) as fleet:
            driver = Driver(prepared, fleet, tracker)
            walk_started = time.perf_counter()
            driver.run()
            walk_seconds = time.perf_counter() - walk_started
    seconds = {
        "stream": prepared_seconds,
        "ray start": ray_seconds,
        **driver.seconds,
        "pipeline (wall)": walk_seconds,
    }
    return _finish(prepared, driver, seconds, started)


def _fleet_spec(prepared: Prepared) -> Any:
    from pipelines.fleet import FleetSpec

    e = prepared.experiment
    return FleetSpec(
        storage=e.storage,
        bank=e.bank_name,
        run=e.run_id,
        code=f"luca-orchestrator {metadata.version('luca-orchestrator')}",
        seed=e.seed,
        class_names=prepared.stream.classes,
        tasks=len(prepared.tasks),
        reader=prepared.stream.reader,
        feature_width=prepared.stream.feature_width,
        backbone=e.backbone,
        features=e.features,
        luca=e.luca,
        learning=e.learning,
        evaluation=e.evaluation,
        cluster=e.cluster,
        settings=e.learning_identity(),
        learns=prepared.learned < len(prepared.tasks),
    )


def _finish(
    prepared: Prepared, driver: Any, seconds: dict[str, float], started: float
) -> dict[str, Any]:
    """Join the predictions, compute the metrics from them, write summary and report."""
    e, run_dir = prepared.experiment, prepared.run_dir
    finish_started = time.perf_counter()
    results.consolidate_predictions(run_dir)
    predictions = results.read_predictions(run_dir)
    metrics = results.metrics_from_predictions(predictions)
    results.write_metrics(run_dir, results.metric_table(predictions))
    infos = [driver.infos[i] for i in sorted(driver.infos)]
    summary: dict[str, Any] = {
        "name": e.name,
        "run": e.run_id,
        "bank": e.bank_name,
        "version": driver.version.version,
        "digest": driver.version.digest,
        "tasks": len(prepared.tasks),
        "tasks_learned": driver.tasks_learned,
        "backbone_images": driver.features.images,
        "metrics": metrics,
        "run_dir": str(run_dir),
        "report": str(run_dir / "report.html"),
        "cache": {
            "hits": driver.features.cached_parts,
            "misses": driver.features.computed_parts,
            "bytes_written": driver.features.stored_bytes,
        },
        "parameters": {
            "stored": sum(int(i.get("stored_parameters", 0)) for i in infos),
            "nonzero": sum(int(i.get("nonzero_parameters", 0)) for i in infos),
            "dense_bytes": sum(int(i.get("dense_bytes", 0)) for i in infos),
            "stored_bytes": sum(int(i.get("stored_bytes", 0)) for i in infos),
        },
        "warnings": list(prepared.stream.warnings),
        "seconds_by_stage": seconds,
    }
    results.write_summary(run_dir, summary)
    seconds["report"] = build(run_dir, finish_started)
    seconds["total"] = time.perf_counter() - started
    results.write_summary(run_dir, summary)
    return summary


def build(run_dir: Any, started: float) -> float:
    """Write the report; seconds since ``started``."""
    from orchestrator.report import build_report

    build_report(run_dir)
    return time.perf_counter() - started
