"""`luca run`: learn a stream into a bank, score it, show the result."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import results
from orchestrator.claim import claimed
from orchestrator.experiment_files import load_experiment
from orchestrator.preparation import Prepared, check_backbone, prepare
from orchestrator.run_folder import fetch_run, publish_run
from orchestrator.tracking import CompositeTracker, RunFinished, RunStarted, build_trackers
from workers.errors import LucaError, StorageError, one_line
from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage
from workers.wording import plural

if TYPE_CHECKING:
    from orchestrator.driver import Outcome
    from orchestrator.experiment import Experiment
    from pipelines.fleet import FleetSpec
    from workers.modeling.evaluation_settings import EvaluationSettings
    from workers.storage.bank import BankVersion


def run_command(
    source: str, overrides: Sequence[str], *, as_json: bool, dry_run: bool = False
) -> None:
    """Run an experiment and print its table, or one JSON object."""
    experiment = load_experiment(source, overrides)
    if dry_run:
        from orchestrator.commands.plan import print_plan

        print_plan(prepare(experiment, dry=True), as_json=as_json)
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
        f"{plural(summary['tasks_learned'], 'task')} learned, "
        f"{plural(summary['backbone_images'], 'image')} through the "
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
    with claimed(prepared.bank, prepared.experiment.run_id, writes=not all_is_scored(prepared)):
        if prepared.bank.latest() != (prepared.head.version if prepared.head else None):
            prepared = prepare(experiment)  # somebody was learning into it until now
        run, run_dir = prepared.experiment.run_id, prepared.run_dir
        fetch_run(run, prepared.storage, run_dir)
        try:
            summary = _run(prepared, started, console=console)
        except (Exception, KeyboardInterrupt):
            with suppress(StorageError):  # which may be the very reason
                publish_run(run, prepared.storage, run_dir)
            raise
        publish_run(run, prepared.storage, run_dir)
        return summary


def _run(prepared: Prepared, started: float, *, console: bool) -> dict[str, Any]:
    """A run whose bank nobody else is learning into."""
    experiment, run_dir = prepared.experiment, prepared.run_dir
    shown = prepared.head if all_is_scored(prepared) else None
    with build_trackers(experiment.tracking, run_dir, console=console) as tracker:
        write_atomic(Storage.open(str(run_dir)), "experiment.yaml", experiment.to_yaml().encode())
        publish_run(experiment.run_id, prepared.storage, run_dir)
        tracker.handle(
            RunStarted(
                experiment.run_id,
                experiment.name,
                experiment.bank_name,
                experiment.storage,
                prepared.describe_tasks(),
                experiment.model_dump(mode="json"),
                resumed=prepared.learned > 0,
                shown="" if shown is None else shown.digest,
            )
        )
        for warning in prepared.warnings:
            tracker.notify(warning, "warning")
        try:
            if shown is None:
                summary = _learn_and_score(prepared, tracker, started)
            else:
                summary = _show(prepared, shown, tracker, started)
        except KeyboardInterrupt:
            tracker.handle(RunFinished("stopped", time.perf_counter() - started))
            raise
        except Exception as error:
            # The console leaves the sentence to the caller, who has it from the exception.
            kind = "" if isinstance(error, LucaError) else f"{type(error).__name__}: "
            tracker.handle(
                RunFinished(
                    "failed", time.perf_counter() - started, error=one_line(f"{kind}{error}")
                )
            )
            raise
        tracker.handle(RunFinished("finished", summary["seconds_by_stage"]["total"], summary))
    return summary


def _learn_and_score(
    prepared: Prepared, tracker: CompositeTracker, started: float
) -> dict[str, Any]:
    from orchestrator.driver import Driver
    from pipelines.cluster import check_shared_storage, join_ray
    from pipelines.fleet import Fleet

    seconds = {"stream": time.perf_counter() - started}
    mark = time.perf_counter()
    with join_ray(prepared.experiment.cluster, notify=tracker.notify) as ray_handle:
        seconds["ray start"] = time.perf_counter() - mark
        check_shared_storage(prepared.experiment.storage)
        mark = time.perf_counter()
        with Fleet(_fleet_spec(prepared), ray_handle, notify=tracker.notify) as fleet:
            outcome = Driver(prepared, fleet, tracker).run()
            seconds["pipeline (wall)"] = time.perf_counter() - mark
        with ray_handle.closing():
            return _finish(prepared, outcome, {**seconds, **outcome.seconds}, started)


def _show(
    prepared: Prepared, head: BankVersion, tracker: CompositeTracker, started: float
) -> dict[str, Any]:
    """A finished run once more, without Ray."""
    seconds = {"stream": time.perf_counter() - started}
    outcome = finished_outcome(prepared, head)
    tracker.notify("everything is learned and scored already; showing what is stored")
    return _finish(prepared, outcome, seconds, started, shown=True)


def all_is_scored(prepared: Prepared) -> bool:
    """Whether the bank holds every task of the stream, and the run's folder the predictions of every version."""
    tasks = len(prepared.tasks)
    if prepared.head is None or prepared.learned < tasks or prepared.experiment.gate.active:
        return False
    scored = results.prediction_keys(prepared.run_dir)
    return all(
        scored.get(count - 1) == prepared.predictions_key(count - 1, version.digest)
        for count, version in prepared.versions.items()
        if count <= tasks
    )


def finished_outcome(prepared: Prepared, head: BankVersion) -> Outcome:
    """The outcome of a run that has nothing left to do; ``head`` is its bank's newest version.

    The backbone is loaded to make sure that it is still the one whose features the bank was learned from.

    Raises:
        BankError: it is another backbone by now.
    """
    from orchestrator.driver import Outcome

    if prepared.stream.reader.kind == "images":
        from workers.modeling.backbone import Backbone

        settings = prepared.experiment
        backbone = Backbone.load(settings.backbone, precision=settings.features.precision)
        check_backbone(head, backbone.info())
    return Outcome(
        version=head.version,
        digest=head.digest,
        tasks_learned=0,
        backbone_images=0,
        cache={"hits": 0, "misses": 0, "bytes_written": 0},
        infos=[record.info for record in head.tasks],
        seconds={},
    )


def _fleet_spec(prepared: Prepared) -> FleetSpec:
    from pipelines.fleet import FleetSpec

    e = prepared.experiment
    return FleetSpec(
        storage=prepared.experiment.storage,
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
        evaluation=e.scoring,
        task_known=prepared.stream.task_known,
        cluster=e.cluster,
        settings=e.learning_identity(),
        defaults=e.prediction_defaults(),
        learns=prepared.learned < len(prepared.tasks),
    )


def method_kinds(evaluation: EvaluationSettings) -> dict[str, dict[str, str]]:
    """Methods that the report does not know by name, by what they say of themselves."""
    from orchestrator.report.methods import describe
    from workers.modeling.baseline_settings import BASELINE_SETTINGS
    from workers.modeling.router_settings import ROUTER_SETTINGS

    kinds: dict[str, dict[str, str]] = {}
    for name in evaluation.reported_routers:
        router = ROUTER_SETTINGS[name]
        kind = "upper bound" if router.upper_bound else "router"
        kinds[name] = {"kind": "order" if router.order_dependent else kind}
    for name in evaluation.baselines:
        bound = BASELINE_SETTINGS[name].bound
        kinds[name] = {"kind": f"{bound} bound" if bound else "baseline"}
    return {name: said for name, said in kinds.items() if describe(name).kind != said["kind"]}


COSTS = ("tasks_learned", "backbone_images", "cache", "seconds_by_stage")
"""Entries of a summary that say what an invocation did and took."""


def _finish(
    prepared: Prepared,
    outcome: Outcome,
    seconds: dict[str, float],
    started: float,
    *,
    shown: bool = False,
) -> dict[str, Any]:
    """Join the predictions, compute the metrics from them, write summary and report.

    Where a finished run is only ``shown`` again, its folder goes on saying what the run itself did and took.
    """
    from orchestrator.report import build_report

    e, run_dir = prepared.experiment, prepared.run_dir
    mark = time.perf_counter()
    results.consolidate_predictions(run_dir)
    predictions = results.read_predictions(run_dir, results.METRIC_COLUMNS)

    def total(name: str) -> int:
        return sum(int(info.get(name, 0)) for info in outcome.infos)

    summary: dict[str, Any] = {
        "name": e.name,
        "run": e.run_id,
        "bank": e.bank_name,
        "version": outcome.version,
        "digest": outcome.digest,
        "scenario": prepared.stream.scenario,
        "primary": e.scoring.routers[0],
        "methods": method_kinds(e.scoring),
        "tasks": len(prepared.tasks),
        "tasks_learned": outcome.tasks_learned,
        "backbone_images": outcome.backbone_images,
        "metrics": results.metrics_from_predictions(predictions),
        "run_dir": str(run_dir),
        "report": str(run_dir / "report.html"),
        "cache": dict(outcome.cache),
        "parameters": {name: total(f"{name}_parameters") for name in ("stored", "nonzero")}
        | {name: total(name) for name in ("dense_bytes", "stored_bytes")},
        "warnings": list(prepared.warnings),
        "seconds_by_stage": seconds,
    }
    costs = _costs(run_dir, outcome.digest) if shown else {}
    results.write_summary(run_dir, {**summary, **costs})

    def total_seconds() -> float:
        """Measured once, for the page, the summary, the log and the console."""
        now = time.perf_counter()
        seconds["report"], seconds["total"] = now - mark, now - started
        return seconds["total"]

    if costs:
        build_report(run_dir)
        total_seconds()
    else:
        build_report(run_dir, seconds=total_seconds)
        results.write_summary(run_dir, summary)
    return summary


def _costs(run_dir: Path, digest: str) -> dict[str, Any]:
    """What the run that made this version of the bank did and took; nothing where no summary says so."""
    try:
        before = results.read_summary(run_dir)
    except StorageError:
        return {}
    if before.get("digest") != digest:
        return {}
    return {key: before[key] for key in COSTS if key in before}
