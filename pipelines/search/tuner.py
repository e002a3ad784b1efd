"""Ray Tune around trials: runs them side by side in a few processes, and stops poor ones early.

A thin adapter.  What to try and what came of it is the conductor's business, and its ledger is all that
outlives this process: Tune's own files lie in a temporary folder and are never read back.

No deadlock and no oversubscription: Tune runs at most ``concurrent`` trials, a trial reserves the CPUs of its threads
and starts no actor of its own, and data shards are gone before the first one starts.  Processes are kept for the next
trial, so Ray, torch and the features are loaded once a process.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.search.conductor import Conductor
from pipelines.search.data import SweepData, SweepPlan
from pipelines.search.trial import Trial
from pipelines.search.trial_report import TrialReport
from pipelines.search.trial_settings import TrialSettings
from workers.errors import ClusterError, FeatureCorruptionError, LucaError, StorageError

_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # an interrupt ends the command, as everywhere else
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
_SECONDS_A_STEP = 1.0


@dataclass(frozen=True, kw_only=True)
class TuneRun:
    """How to run trials.

    Attributes:
        concurrent: trials at a time.
        cpus: CPUs that each reserves.
        folder: for Tune's own files, on this machine.
        check_room: called again and again; what it raises ends the round.
    """

    concurrent: int
    cpus: int
    folder: Path
    check_room: Callable[[], None]


class TrialProcess:
    """What a trial process does, whatever runs it: one trial after the other on the same features."""

    def __init__(self, plan: SweepPlan) -> None:
        from workers.runtime import prepare_process

        prepare_process(plan.threads)
        self._data = SweepData(plan)
        self._rungs = frozenset(plan.rungs)
        self._settings: TrialSettings | None = None
        self._trial: Trial | None = None

    def begin(self, settings: str) -> None:
        """Start a trial; ``settings`` is TrialSettings as JSON."""
        self._settings = TrialSettings.model_validate_json(settings)
        self._trial = None

    def step(self) -> dict[str, Any]:
        """Some more tasks: up to the next rung, but no more than about a second's worth beyond the first.

        A round trip to the driver costs about as much as a small task, and a large one deserves its own.

        Returns:
            ``reports`` (JSON) and whether the trial is ``done``; or ``failed``, what is wrong with the settings; or
            ``broken``, what is wrong with the features, which no setting can mend.

        Raises:
            StorageError: the storage cannot be read: the trial is lost, and no settings are to blame.
        """
        reports: list[dict[str, Any]] = []
        started = time.monotonic()
        try:
            if self._trial is None:
                assert self._settings is not None
                self._trial = Trial(self._settings, self._data)
            while True:
                report = self._trial.step()
                reports.append(report.to_json())
                late = time.monotonic() - started > _SECONDS_A_STEP
                if self._trial.finished or report.tasks in self._rungs or late:
                    break
        except FeatureCorruptionError as error:
            return {"broken": str(error), "done": True}
        except StorageError:
            raise
        except LucaError as error:
            return {"failed": str(error), "done": True}
        except Exception as error:  # noqa: BLE001 - reported as this trial's failure; others go on
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            return {"failed": f"{type(error).__name__} at {place}: {error}", "done": True}
        return {"reports": json.dumps(reports), "done": self._trial.finished}


def run_trials(conductor: Conductor, plan: SweepPlan, run: TuneRun) -> None:
    """Run trials until the conductor has no more.  Ray must have been joined.

    A trial whose settings do not work, or whose process dies again and again, is recorded as such and the others
    go on.  Tune itself retries nothing: it would give up on a trial whose process dies before it begins.

    Raises:
        FeatureCorruptionError: cached features are gone or damaged; extract them again and call this again.
        ClusterError: every trial lost its process, or no node has room for one any more.
    """
    broken: list[str] = []
    lost: list[str] = []
    before = conductor.ended
    with _quiet():
        from ray import tune

        trainable = tune.with_parameters(_trainable(), plan=plan)
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": float(run.cpus)}),
            tune_config=tune.TuneConfig(
                search_alg=_searcher(conductor, broken),
                scheduler=_scheduler(conductor),
                num_samples=-1,  # the conductor says when there are enough
                max_concurrent_trials=run.concurrent,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: f"trial_{trial.trial_id}",
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(run.folder),
                stop=_stopper(broken),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                callbacks=[_losses(conductor, lost, run.check_room)],
                verbose=0,
            ),
        )
        tuner.fit()
    if broken:
        raise FeatureCorruptionError(broken[0])
    if lost and conductor.ended == before:
        raise ClusterError(f"no trial could be run: {lost[0]}; the same command tries again")


def _trainable() -> Any:
    from ray import tune

    class SweepTrial(tune.Trainable):  # type: ignore[misc]
        """A trial as Tune runs it."""

        def setup(self, config: dict[str, Any], plan: SweepPlan) -> None:
            self.process = TrialProcess(plan)
            self.process.begin(config["settings"])

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.process.begin(new_config["settings"])
            return True

        def step(self) -> dict[str, Any]:
            return self.process.step()

    return SweepTrial


def _reports(result: dict[str, Any]) -> list[TrialReport]:
    return [TrialReport.from_json(report) for report in json.loads(result["reports"])]


def _searcher(conductor: Conductor, broken: list[str]) -> Any:
    from ray.tune.search import Searcher

    class ConductedSearch(Searcher):  # type: ignore[misc]
        """Tune's questions and answers, passed on to the conductor."""

        def __init__(self, conductor: Conductor, broken: list[str]) -> None:
            super().__init__()
            self.conductor, self.broken = conductor, broken
            self.numbers: dict[str, int] = {}

        __getstate__ = _nothing

        def set_search_properties(self, *_: Any, **__: Any) -> bool:
            return True

        def suggest(self, trial_id: str) -> Any:
            assignment = None if self.broken else self.conductor.next()
            if assignment is None:
                # While trials run, one may be lost and has to be begun again.
                waits = self.conductor.running and not self.broken
                return None if waits else Searcher.FINISHED
            self.numbers[trial_id] = assignment.record.number
            return {
                "number": assignment.record.number,
                "published": assignment.record.published,
                "settings": assignment.settings.model_dump_json(),
            }

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            number = self.numbers[trial_id]
            if error:
                return  # the callback below knows why
            if result is None:
                self.conductor.lost(number, "it was ended before its first task")
            elif "broken" in result:
                self.broken.append(result["broken"])
                self.conductor.lost(number, result["broken"])
            elif "failed" in result:
                self.conductor.failed(number, result["failed"])
            else:
                self.conductor.end(number, _reports(result))

        def save(self, checkpoint_path: str) -> None:
            """The ledger has everything."""
            Path(checkpoint_path).write_bytes(b"")

        def restore(self, checkpoint_path: str) -> None:
            """A sweep is continued from its ledger."""

    return ConductedSearch(conductor, broken)


def _scheduler(conductor: Conductor) -> Any:
    from ray.tune.schedulers import FIFOScheduler

    class ConductedHalving(FIFOScheduler):  # type: ignore[misc]
        """Stops a trial when the conductor says so (halving.py)."""

        def __init__(self, conductor: Conductor) -> None:
            super().__init__()
            self.conductor = conductor

        __getstate__ = _nothing

        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:  # noqa: ARG002
            stop = self.conductor.report(trial.config["number"], _reports(result))
            return str(self.STOP if stop else self.CONTINUE)

    return ConductedHalving(conductor)


def _stopper(broken: list[str]) -> Any:
    from ray.tune import Stopper

    class StopWhenBroken(Stopper):  # type: ignore[misc]
        """Ends the round once features turned out damaged."""

        def __init__(self, broken: list[str]) -> None:
            self.broken = broken

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002
            return False

        def stop_all(self) -> bool:
            return bool(self.broken)

    return StopWhenBroken(broken)


def _losses(conductor: Conductor, lost: list[str], check_room: Callable[[], None]) -> Any:
    from ray.tune import Callback

    class Losses(Callback):  # type: ignore[misc]
        """Tells the conductor of lost processes, and sees that there is room for any at all."""

        def __init__(
            self, conductor: Conductor, lost: list[str], check_room: Callable[[], None]
        ) -> None:
            self.conductor, self.lost, self.check_room = conductor, lost, check_room

        __getstate__ = _nothing

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.check_room()

        def on_trial_error(self, *_: Any, trial: Any, **__: Any) -> None:
            reason = _why(trial)
            self.lost.append(f"its process was lost: {reason[:300]}")
            self.conductor.lost(trial.config["number"], self.lost[-1])

    return Losses(conductor, lost, check_room)


def _why(trial: Any) -> str:
    """What Tune wrote down about the last loss of a process; it lies beside Tune's own files on this machine."""
    path = trial.error_file
    text = Path(path).read_text("utf-8", "replace") if path and Path(path).is_file() else ""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text.rpartition("Failure #")[2].partition("\n")[2])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "it left no message"
    return lines[-1] if lines[0].startswith("ray::") else lines[0]


def _nothing(_: Any) -> dict[str, Any]:
    """The state of objects that Tune pickles beside its own and that are never read back."""
    return {}


@contextmanager
def _quiet() -> Iterator[None]:
    """Tune without its own tables, loggers and files; what it would say is in the records."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.air", "ray.train")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
