"""What a run looks like in W&B: which numbers, tables, images and artefacts are logged under which names."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.tracking.events import (
    Event,
    RunFinished,
    RunStarted,
    TaskEvaluated,
    TaskLearned,
    VersionCommitted,
)
from orchestrator.tracking.tracker import WandbSettings
from workers.errors import LucaError

_TASK_COLUMNS = (
    "task",
    "name",
    "classes",
    "train",
    "test",
    "seconds",
    "steps",
    "last loss",
    "stored parameters",
    "non-zero parameters",
)


class WandbSession:
    """Turns events into what W&B shows: curves by task and epoch, tables, heatmaps, artefacts."""

    def __init__(
        self, wandb: Any, run: Any, settings: WandbSettings, run_dir: Path, started: RunStarted
    ) -> None:
        self._wandb = wandb
        self._run = run
        self._settings = settings
        self._run_dir = run_dir
        self._started = started
        self._learned: dict[int, TaskLearned] = {}
        self._exit_code = 1
        run.define_metric("task", hidden=True)
        run.define_metric("learning/epoch", hidden=True)
        run.define_metric("learning/loss", step_metric="learning/epoch")

    def handle(self, event: Event) -> None:
        """Logs what the event says."""
        if isinstance(event, TaskLearned):
            self._task_learned(event)
        elif isinstance(event, VersionCommitted):
            self._version_committed(event)
        elif isinstance(event, TaskEvaluated):
            self._task_evaluated(event)
        elif isinstance(event, RunFinished):
            self._run_finished(event)

    def finish(self) -> None:
        """Ends the W&B run; waits for uploads when online."""
        self._run.finish(exit_code=self._exit_code)

    def _task_learned(self, event: TaskLearned) -> None:
        self._learned[event.task] = event
        if not event.cached:
            before = event.task * len(event.losses)  # the same x however often the run is resumed
            for epoch, loss in enumerate(event.losses, start=1):
                self._log({"learning/epoch": before + epoch, "learning/loss": loss})
        self._log_by_task(
            event.task,
            {
                "learning/seconds": event.seconds,
                "parameters/stored": event.stored_parameters,
                "parameters/nonzero": event.nonzero_parameters,
            },
        )

    def _task_evaluated(self, event: TaskEvaluated) -> None:
        values = {
            f"{metric}/{method}": value
            for method, metrics in event.metrics.items()
            for metric, value in metrics.items()
        }
        self._log_by_task(event.task, {**values, "bank/version": event.version})

    def _version_committed(self, event: VersionCommitted) -> None:
        if self._settings.artifacts == "none":
            return
        data = event.to_json()
        artifact = self._wandb.Artifact(
            f"bank-{wandb_id(event.bank)}", type="bank", metadata={"run": self._started.run, **data}
        )
        if self._settings.artifacts == "files":
            _add_bank_files(artifact, self._started.storage, event)
        else:
            with artifact.new_file("version.json", mode="w", encoding="utf-8") as file:
                json.dump(data, file, indent=2)
        # "v3" is kept by W&B for its own numbers.
        self._run.log_artifact(artifact, aliases=["latest", f"version-{event.version}"])

    def _run_finished(self, event: RunFinished) -> None:
        self._exit_code = 0 if event.status == "finished" else 1
        self._run.summary["status"] = event.status
        self._run.summary["seconds"] = event.seconds
        self._run.summary["error"] = event.error  # "" over that of an earlier attempt
        for key in ("version", "digest", "tasks_learned", "backbone_images"):
            if key in event.summary:
                self._run.summary[key] = event.summary[key]
        self._log_task_table()
        with contextlib.suppress(LucaError):  # a run stopped before its first evaluation has none
            self._log_results()
        if self._settings.images:
            for path in sorted(self._run_dir.glob("accuracy_matrix*.png")):
                self._run.log({f"images/{path.stem}": self._wandb.Image(str(path))})

    def _log_task_table(self) -> None:
        table = self._wandb.Table(columns=list(_TASK_COLUMNS))
        for index, task in enumerate(self._started.tasks):
            classes = task.get("classes", ())
            learned = self._learned.get(index)
            row: list[Any] = [
                index,
                str(task.get("name", "")),
                classes if isinstance(classes, int) else len(classes),
                task.get("train"),
                task.get("test"),
            ]
            if learned is None:
                row += [None] * 5
            else:
                row += [learned.seconds, learned.steps]
                row += [learned.losses[-1] if learned.losses else None]
                row += [learned.stored_parameters, learned.nonzero_parameters]
            table.add_data(*row)
        self._run.log({"tables/tasks": table})

    def _log_results(self) -> None:
        from orchestrator import results
        from orchestrator.report.methods import describe

        predictions = results.read_predictions(self._run_dir, results.METRIC_COLUMNS)
        matrix = self._wandb.Table(columns=["method", "kind", "after task", "on task", "accuracy"])
        kinds = {
            method: describe(method, scenario=self._started.scenario).kind
            for method in results.method_names(predictions)
        }
        for method in kinds:
            values = results.accuracy_matrix(predictions, method)
            for after, on in np.argwhere(np.isfinite(values)).tolist():
                matrix.add_data(method, kinds[method], after, on, float(values[after, on]))
        self._run.log({"tables/accuracy_matrix": matrix})
        final = results.metrics_from_predictions(predictions)
        names = sorted({name for metrics in final.values() for name in metrics})
        table = self._wandb.Table(columns=["method", "kind", *names])
        for method, metrics in final.items():
            table.add_data(method, kinds[method], *(metrics.get(name) for name in names))
            for name, value in metrics.items():
                self._run.summary[f"final/{method}/{name}"] = value
        self._run.log({"tables/metrics": table})

    def _log_by_task(self, task: int, values: Mapping[str, float]) -> None:
        for key in values:
            self._run.define_metric(key, step_metric="task")
        self._log({"task": task, **values})

    def _log(self, values: Mapping[str, float | None]) -> None:
        self._run.log({k: v for k, v in values.items() if v is not None and math.isfinite(v)})


def wandb_id(name: str) -> str:
    """A W&B id made of a name: at most 64 characters of those that W&B allows, and no two names alike."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "-", name)
    if safe == name and 0 < len(safe) <= 64:
        return safe
    return f"{safe[:51]}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:12]}"


def _add_bank_files(artifact: Any, storage: str, event: VersionCommitted) -> None:
    """Adds a bank version's manifest and every object it names; unchanged files are sent once by W&B."""
    from workers.storage.bank import Bank
    from workers.storage.filesystem import Storage

    root = Storage.open(storage)
    bank = Bank.open(root, event.bank)
    version = bank.load(event.version)
    digests = {ref.digest for ref in version.manifest.pages}
    digests |= {ref.digest for ref in version.manifest.shared.values()}
    digests |= {ref.digest for task in version.tasks for ref in task.objects.values()}
    paths = {bank.manifest_path(event.version)} | {bank.objects.path(d) for d in digests}
    for path in sorted(paths):
        name = path.removeprefix(f"{bank.directory}/")
        if root.is_local:
            artifact.add_file(str(root.local_path(path)), name=name, policy="immutable")
        else:
            with artifact.new_file(name, mode="wb") as file:
                file.write(root.read_bytes(path))
