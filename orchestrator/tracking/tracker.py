"""The tracker protocol, several trackers as one, and how a run's trackers are made.

Tracking is never the reason for which a run fails: a tracker that raises is reported once and left out from then on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from orchestrator.tracking.events import Event, Notice
from workers.settings import Settings


class Tracker(Protocol):
    """Gets every event of a run, in order."""

    def handle(self, event: Event) -> None:
        """Takes note of ``event``; must be quick, since the driver waits for it."""

    def close(self) -> None:
        """Writes what is still to be written and lets go of files, threads and the screen."""


class WandbSettings(Settings):
    """Weights & Biases (key ``tracking.wandb``).  The API key is never a setting: use ``wandb login``
    or the environment variable WANDB_API_KEY."""

    mode: Literal["auto", "online", "offline", "disabled"] = Field(
        "auto",
        description="auto: online when an API key is found, else offline (upload later with `wandb sync`)",
    )
    project: str = Field("luca", description="W&B project", min_length=1)
    entity: str | None = Field(None, description="W&B user or team; None: your default")
    group: str | None = Field(None, description="groups runs in W&B; None: the bank's name")
    tags: list[str] = Field(default_factory=list, description="W&B tags of the run")
    images: bool = Field(True, description="log the accuracy-matrix heatmap as an image at the end")
    artifacts: Literal["none", "metadata", "files"] = Field(
        "metadata",
        description="mirror each bank version as an artefact: its metadata only, or its files as well",
    )
    init_timeout: float = Field(
        15.0, gt=0, description="seconds to wait for the server before going offline"
    )
    finish_timeout: float = Field(
        60.0,
        gt=0,
        description="seconds to wait at the end for uploads; the rest is left to `wandb sync`",
    )


class TrackingSettings(Settings):
    """Where a run is reported while it goes on (key ``tracking``); the JSON-lines log is always written."""

    console: Literal["auto", "rich", "plain", "quiet"] = Field(
        "auto", description="auto: bars on a terminal, else plain lines; all on standard error"
    )
    live_report: bool = Field(
        True, description="keep report.html up to date while the run goes on, not only at its end"
    )
    tensorboard: bool = Field(False, description="write TensorBoard files under the run's folder")
    wandb: WandbSettings = Field(default_factory=WandbSettings)


class CompositeTracker:
    """Several trackers as one.

    A tracker that raises in :meth:`handle` is closed and dropped, and the others get a :class:`Notice` that says so.
    Events may come from several threads; trackers see one at a time.
    """

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers: list[Tracker] = list(trackers)
        self._lock = threading.RLock()

    def add(self, tracker: Tracker) -> None:
        """Adds a tracker; it gets the events from now on."""
        with self._lock:
            self._trackers.append(tracker)

    def handle(self, event: Event) -> None:
        """Gives ``event`` to every tracker that still works."""
        with self._lock:
            for tracker in list(self._trackers):
                try:
                    tracker.handle(event)
                except Exception as error:  # noqa: BLE001 - reported; tracking must not end a run
                    self._drop(tracker, error)

    def notify(self, message: str, level: Literal["info", "warning"] = "info") -> None:
        """Sends a :class:`Notice` to the trackers; what trackers use to speak to the user."""
        self.handle(Notice(level, message))

    def close(self) -> None:
        """Closes the trackers, the last added first, so that the log and the console hear the others out."""
        while True:
            with self._lock:
                if not self._trackers:
                    return
                tracker = self._trackers.pop()
            # Not under the lock: a tracker's own thread may have a last notice to give.
            try:
                tracker.close()
            except Exception as error:  # noqa: BLE001 - reported; tracking must not end a run
                self.notify(f"{_title(tracker)} could not be closed: {_sentence(error)}", "warning")

    def __enter__(self) -> CompositeTracker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _drop(self, tracker: Tracker, error: Exception) -> None:
        if tracker not in self._trackers:  # dropped already, while it was being told about another
            return
        self._trackers.remove(tracker)
        with contextlib.suppress(Exception):  # it has failed already, and that is what is reported
            tracker.close()
        self.notify(
            f"{_title(tracker)} failed and is off for the rest of this run: {_sentence(error)}",
            "warning",
        )


def build_trackers(
    settings: TrackingSettings, run_dir: str | Path, *, console: bool = True
) -> CompositeTracker:
    """The trackers of a run: JSON lines always, then console, live report, TensorBoard and W&B as set.

    A run that is continued in the same folder continues its log and its W&B run.

    Args:
        settings: the experiment's ``tracking``.
        run_dir: the run's folder; made if missing.
        console: False silences the console whatever the settings say.
    """
    from orchestrator.tracking.jsonl import JsonlTracker

    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    composite = CompositeTracker([JsonlTracker(folder / "events.jsonl")])
    if console and settings.console != "quiet":
        from orchestrator.tracking.console import console_tracker

        composite.add(console_tracker(settings.console))
    optional: dict[str, Any] = {}
    if settings.live_report:
        from orchestrator.report.live import LiveReport

        composite.add(LiveReport(folder))
    if settings.tensorboard:
        from orchestrator.tracking.tensorboard import TensorboardTracker

        optional["TensorBoard"] = lambda: TensorboardTracker(folder)
    if settings.wandb.mode != "disabled":
        from orchestrator.tracking.wandb_tracker import WandbTracker

        optional["W&B"] = lambda: WandbTracker(settings.wandb, folder, notify=composite.notify)
    for name, make in optional.items():
        try:
            composite.add(make())
        except Exception as error:  # noqa: BLE001 - reported; tracking must not end a run
            composite.notify(f"{name} tracking is off for this run: {_sentence(error)}", "warning")
    return composite


def _title(tracker: Tracker) -> str:
    return type(tracker).__name__


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
