"""A sweep in Weights & Biases: one group, with a run for every trial and one for the whole.

As in a run's tracker all calls are made on a thread of their own, and without a key or a server everything is recorded
offline under the sweep's folder.  What has been recorded is noted, so that a continued sweep adds only what is new.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from orchestrator.sweep import story
from orchestrator.sweep.results import SweepResult
from orchestrator.tracking import WandbSettings
from orchestrator.tracking.wandb_session import wandb_id
from orchestrator.tracking.wandb_tracker import (
    common_arguments,
    has_credentials,
    started_run,
    wanted_mode,
)
from pipelines.search.ledger import TrialRecord

Notify = Callable[[str, Literal["info", "warning"]], None]
Mode = Literal["online", "offline"]
_SUMMARY = "summary"


class WandbGroup:
    """Mirrors a sweep to W&B; a sweep never waits for it but at its end, and then for a bounded time.

    Args:
        settings: the experiment's ``tracking.wandb``.
        folder: the sweep's folder on this machine.
        sweep: the sweep's id, which names the group unless the settings do.
        config: facts for every run's config.
        notify: told where offline runs lie, and what went wrong.
    """

    def __init__(
        self,
        settings: WandbSettings,
        folder: Path,
        sweep: str,
        *,
        config: Mapping[str, Any],
        notify: Notify,
    ) -> None:
        self._settings = settings
        self._folder = folder.resolve()
        self._sweep = sweep
        self._config = dict(config)
        self._notify = notify
        self._ledger = self._folder / "wandb" / "recorded.txt"
        self._mode: Mode | None = None
        self._queue: queue.Queue[TrialRecord | SweepResult | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return wanted_mode(self._settings) != "disabled"

    def trial(self, record: TrialRecord) -> None:
        """A trial that ended."""
        self._put(record)

    def finish(self, result: SweepResult) -> None:
        """Record what is not recorded yet and the whole, and wait for W&B within its time."""
        if not self.enabled:
            return
        names = {record.id for record in result.records if record.ended} | {_SUMMARY}
        if self._thread is None and names <= self._recorded():
            return  # nothing happened since
        for record in result.records:
            if record.ended:
                self._put(record)
        self._put(result)
        self._put(None)
        if self._thread is None:
            return
        patience = 2 * self._settings.init_timeout + self._settings.finish_timeout
        patience += 2.0 * len(result.records)
        self._thread.join(timeout=patience)
        if self._thread.is_alive():
            self._notify(f"W&B is still busy after {patience:.0f} s and was left", "warning")

    def _put(self, item: TrialRecord | SweepResult | None) -> None:
        if not self.enabled:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
            self._thread.start()
        self._queue.put(item)

    def _work(self) -> None:
        try:
            with _folders(self._folder):
                while (item := self._queue.get()) is not None:
                    if isinstance(item, TrialRecord):
                        self._record_trial(item)
                    else:
                        self._record_sweep(item)
        except Exception as error:  # noqa: BLE001 - reported; tracking must not end a sweep
            self._notify(f"W&B is off for this sweep: {type(error).__name__}: {error}", "warning")

    def _record_trial(self, record: TrialRecord) -> None:
        if record.id in self._recorded():
            return
        config = {**record.settings, "published": record.published, "trial": record.id}
        run = self._init(record.id, "trial", config)
        run.define_metric("validation/*", step_metric="tasks")
        run.define_metric("parameters/*", step_metric="tasks")
        for done, (value, size) in enumerate(zip(record.curve, record.sizes, strict=True), 1):
            run.log({"tasks": done, "validation/accuracy_seen": value, "parameters/nonzero": size})
        for key in ("status", "validation_accuracy", "nonzero_parameters", "seconds", "error"):
            value = getattr(record, key)
            if value not in (None, ""):
                run.summary[key] = value
        if record.spread is not None:
            run.summary["spread"] = record.spread
        run.finish(exit_code=1 if record.status == "failed" else 0)
        self._note(record.id)

    def _record_sweep(self, result: SweepResult) -> None:
        import wandb

        run = self._init(_SUMMARY, "sweep", {**result.about, "tasks": result.tasks})
        keys = list(dict.fromkeys(key for record in result.records for key in record.settings))
        table = wandb.Table(
            columns=["trial", "marks", "validation accuracy", "non-zero parameters", *keys]
        )
        for record in story.in_order(result):
            finished = record.status == "finished"
            table.add_data(
                record.id,
                ", ".join(story.marks(record, result)),
                record.validation_accuracy if finished else None,
                record.nonzero_parameters if finished else None,
                *(
                    story.short(record.settings[key]) if key in record.settings else None
                    for key in keys
                ),
            )
        run.log({"tables/trials": table})
        for name, chosen in (("best", result.best), ("smallest", result.smallest)):
            if chosen is not None:
                run.summary[f"{name}/trial"] = chosen.id
                run.summary[f"{name}/validation_accuracy"] = chosen.validation_accuracy
                run.summary[f"{name}/nonzero_parameters"] = chosen.nonzero_parameters
        if self._settings.images:
            for path in sorted(self._folder.glob("*.png")):
                run.log({f"images/{path.stem}": wandb.Image(str(path))})
        run.finish()
        self._note(_SUMMARY)

    def _note(self, name: str) -> None:
        self._ledger.parent.mkdir(parents=True, exist_ok=True)
        with self._ledger.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")

    def _recorded(self) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            return set(self._ledger.read_text("utf-8").split())
        return set()

    def _init(self, name: str, kind: str, config: Mapping[str, Any]) -> Any:
        import wandb

        if self._mode is None:
            self._mode = "offline" if wanted_mode(self._settings) == "offline" else "online"
            if self._mode == "online" and not has_credentials():
                self._mode = "offline"
        run = None
        if self._mode == "online":
            try:
                run = self._start(wandb, name, kind, config, "online")
            except (wandb.Error, OSError, ValueError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                self._notify(
                    f"W&B could not be reached ({reason}); the sweep is recorded offline", "warning"
                )
                self._mode = "offline"
                wandb.teardown()
        if run is None:
            run = self._start(wandb, name, kind, config, "offline")
        if kind == "sweep" and self._mode == "offline":
            self._notify(
                f"W&B recorded the sweep offline; send it later with: wandb sync "
                f"{self._folder / 'wandb'}/offline-run-*",
                "info",
            )
        return run

    def _start(
        self, wandb: Any, name: str, kind: str, config: Mapping[str, Any], mode: Mode
    ) -> Any:
        return started_run(
            wandb,
            mode=mode,
            dir=str(self._folder),
            id=wandb_id(f"{self._sweep}-{name}"),
            name=name,
            group=self._settings.group or self._sweep,
            job_type=kind,
            config={**self._config, **config, "sweep": self._sweep},
            **common_arguments(wandb, self._settings),
        )


@contextlib.contextmanager
def _folders(folder: Path) -> Iterator[None]:
    """W&B's environment while it works: staged files stay in the sweep's folder, and nothing else is sent."""
    wanted = {
        "WANDB_DATA_DIR": str(folder / "wandb" / "data"),
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
