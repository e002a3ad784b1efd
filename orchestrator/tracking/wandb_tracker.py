"""Weights & Biases: the run's curves, tables, heatmaps and bank versions, online or recorded for later.

All calls to W&B are made on one thread of their own, so that a slow or absent server costs the run nothing: events
are put in a queue and the driver goes on.  Without an API key, or when the server does not answer, the run
is recorded offline under the run's folder, to be sent later with ``wandb sync``.
"""

from __future__ import annotations

import contextlib
import json
import netrc
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from orchestrator.tracking.events import (
    Event,
    RunFinished,
    RunStarted,
    TaskEvaluated,
    TaskLearned,
    VersionCommitted,
)
from orchestrator.tracking.tracker import WandbSettings
from orchestrator.tracking.wandb_session import WandbSession, wandb_id
from workers.storage.atomic import write_file

Notify = Callable[[str, Literal["info", "warning"]], None]

_DEFAULT_HOSTS = {"api.wandb.ai", "api.forge.coreweave.com"}  # of one version of W&B or another
_HANDLED = (RunStarted, TaskLearned, VersionCommitted, TaskEvaluated, RunFinished)


class WandbTracker:
    """Mirrors a run to W&B.

    The W&B run's id follows from the run's own (the folder's name), so a resumed run continues the same W&B run.
    Curves have their own x axes (``task``, ``learning/epoch``) rather than W&B's step, for the same reason.

    A finished run that is only shown again is not recorded again where its end has been: a note in its ``wandb`` folder
    says so.

    At the end it reads the predictions in the run's folder and logs the tables that the report shows; write those
    files before :class:`RunFinished`.
    """

    def __init__(
        self,
        settings: WandbSettings,
        run_dir: str | Path,
        *,
        notify: Notify | None = None,
    ) -> None:
        self._settings = settings
        self._run_dir = Path(run_dir).resolve()
        self._notify: Notify = notify or _unheard
        self._queue: queue.Queue[Event | None] = queue.Queue()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._note = self._run_dir / "wandb" / "recorded.json"
        self._digest: str | None = None  # of the bank, once the run has finished well
        self.offline: bool | None = None  # known once the run has started
        self._session: WandbSession | None = None

    def handle(self, event: Event) -> None:
        """Queues the event; the first one starts W&B in the background.

        Raises:
            Exception: what went wrong on W&B's thread since the last event.
        """
        self._raise_error()
        if not isinstance(event, _HANDLED):
            return
        if self._thread is None:
            if not isinstance(event, RunStarted) or wanted_mode(self._settings) == "disabled":
                return
            if event.shown and self._is_recorded(event.shown):
                return
            self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
            self._thread.start()
        self._queue.put(event)

    def close(self) -> None:
        """Waits for W&B to take the rest, within ``finish_timeout``; what is then left is on disk."""
        if self._thread is None:
            return
        self._queue.put(None)
        patience = 2 * self._settings.init_timeout + self._settings.finish_timeout + 15
        self._thread.join(timeout=patience)
        if self._thread.is_alive():
            self._notify(
                f"W&B is still busy after {patience:.0f} s and was left; "
                f"send the rest with: wandb sync {self._run_dir / 'wandb'}",
                "warning",
            )
            return
        self._thread = None
        self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        """W&B's thread: takes events until None comes."""
        try:
            with _folders(self._run_dir):
                while (event := self._queue.get()) is not None:
                    if isinstance(event, RunStarted) and self._session is None:
                        self._session = self._start(event)
                    if self._session is not None:
                        self._session.handle(event)
                    if isinstance(event, RunFinished) and event.status == "finished":
                        self._digest = event.summary.get("digest")
                if self._session is not None:
                    self._session.finish()
                    if self._digest is not None:
                        write_file(self._note, json.dumps(self._recorded(self._digest)).encode())
        except BaseException as error:  # noqa: BLE001 - raised again on the driver's thread
            self._error = error

    def _recorded(self, digest: str) -> dict[str, str | None]:
        """What the note says: which bank, and where in W&B.  Whether it was sent is for ``wandb sync`` to settle."""
        where = {"entity": self._settings.entity, "project": self._settings.project}
        return {"digest": digest, **where}

    def _is_recorded(self, digest: str) -> bool:
        try:
            return bool(json.loads(self._note.read_bytes()) == self._recorded(digest))
        except (OSError, ValueError):  # no note, or one that a full disk cut short
            return False

    def _start(self, event: RunStarted) -> WandbSession:
        import wandb

        mode = wanted_mode(self._settings)
        if mode == "online" and not (has_credentials() or wandb.api.api_key):
            mode = "offline"
            self._notify(
                "W&B: no API key was found, so the run is recorded offline; run `wandb login` first",
                "warning",
            )
        run = None
        if mode == "online":
            try:
                run = self._init(wandb, event, "online")
            except (wandb.Error, OSError, ValueError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                self._notify(
                    f"W&B could not be reached ({reason}); the run is recorded offline", "warning"
                )
                mode = "offline"
                wandb.teardown()  # its service would not start the same run twice
        if run is None:
            run = self._init(wandb, event, "offline")
        self.offline = mode == "offline"
        if self.offline:
            self._notify(
                f"W&B records offline; send it later with: wandb sync {Path(run.dir).parent}",
                "info",
            )
        return WandbSession(wandb, run, self._settings, self._run_dir, event)

    def _init(self, wandb: Any, event: RunStarted, mode: Literal["online", "offline"]) -> Any:
        data = event.to_json()
        return started_run(
            wandb,
            mode=mode,
            dir=str(self._run_dir),
            id=wandb_id(event.run),
            name=event.run,
            group=self._settings.group or event.bank,
            config={
                **data["experiment"],
                "run": {key: data[key] for key in ("run", "name", "bank", "storage")}
                | {"tasks": len(event.tasks)},
            },
            **common_arguments(wandb, self._settings),
        )


def started_run(wandb: Any, **arguments: Any) -> Any:
    """``wandb.init`` without the hook that it leaves for exceptions nobody catches.

    The hook prints the traceback and then calls the one before it, which may print it once more (as Ray's does); how a
    run ended is said to :meth:`finish` in any case.
    """
    before = sys.excepthook
    try:
        return wandb.init(**arguments)
    finally:
        if (getattr(sys.excepthook, "__module__", None) or "").startswith("wandb."):
            sys.excepthook = before


def common_arguments(wandb: Any, settings: WandbSettings) -> dict[str, Any]:
    """Arguments of ``wandb.init`` that runs and sweeps share; settings that the installed release lacks are left out."""
    wanted = {
        "init_timeout": settings.init_timeout,
        "finish_timeout": settings.finish_timeout,
        "silent": True,
        "console": "off",
        "disable_git": True,
        "disable_code": True,
        "disable_job_creation": True,
        "x_disable_stats": True,
    }
    known = {k: v for k, v in wanted.items() if k in wandb.Settings.model_fields}
    return {
        "project": settings.project,
        "entity": settings.entity,
        "tags": list(settings.tags) or None,
        "resume": "allow",
        "reinit": "create_new",
        "settings": wandb.Settings(**known),
    }


def wanted_mode(settings: WandbSettings) -> Literal["online", "offline", "disabled"]:
    """The mode asked for: the setting, or for ``auto`` the environment's WANDB_MODE, or whether there is a key."""
    if settings.mode != "auto":
        return settings.mode
    asked = os.environ.get("WANDB_MODE", "").lower()
    if asked in ("offline", "dryrun"):
        return "offline"
    if asked == "disabled":
        return "disabled"
    return "online" if has_credentials() else "offline"


def has_credentials() -> bool:
    """Whether W&B would find an API key (environment or netrc file).  The key itself is not kept."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    own = os.environ.get("WANDB_BASE_URL")
    hosts = {urlparse(own).netloc} if own else _DEFAULT_HOSTS
    candidates = [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]
    for path in (Path(name).expanduser() for name in candidates if name):
        with contextlib.suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            if path.is_file() and hosts & set(netrc.netrc(str(path)).hosts):
                return True
    return False


def _unheard(message: str, level: Literal["info", "warning"]) -> None:
    """For a tracker that nobody listens to."""


@contextlib.contextmanager
def _folders(run_dir: Path) -> Iterator[None]:
    """W&B's environment for the run: staged files stay in the run's folder, and nothing is sent but the run itself
    (its client would report its own use to the server even when recording offline)."""
    wanted = {
        "WANDB_DATA_DIR": run_dir / "wandb" / "data",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }
    before = {name: os.environ.get(name) for name in wanted}
    for name, value in wanted.items():
        os.environ.setdefault(name, str(value))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
