"""Runs a sweep: features first, then trials until there are enough, then what was found.

Everything that is known lies in the storage; the same command after any crash goes on from there, and when nothing is
left to do it starts no process at all.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.sweep.files import write_sweep
from orchestrator.sweep.opening import PUBLISHED, Sweep
from orchestrator.sweep.results import SweepResult, importances
from orchestrator.sweep.story import ending_line
from orchestrator.sweep.wandb_group import WandbGroup
from orchestrator.tracking import StageProgress, build_trackers
from pipelines.cluster import check_job_storage
from pipelines.search.conductor import Conductor
from pipelines.search.data import SweepPlan
from pipelines.search.features import (
    FeatureSource,
    ReadyFeatures,
    cached_features,
    extract_features,
)
from pipelines.search.ledger import SweepLedger, TrialRecord
from pipelines.search.planning import rungs, sweep_stream
from pipelines.search.proposals import make_proposals
from workers.errors import FeatureCorruptionError, SettingsError
from workers.modeling.backbone_check import check_buildable
from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage
from workers.storage.lock import BankLock
from workers.wording import plural

if TYPE_CHECKING:
    from orchestrator.tracking import CompositeTracker
    from pipelines.cluster import RayHandle

_MENDINGS = 3


@dataclass(frozen=True)
class Outcome:
    """A sweep's result and where its page is."""

    result: SweepResult
    page: str


def run_sweep(sweep: Sweep, *, console: bool = True) -> Outcome:
    """Run a sweep to its end, or go on with it, and write its files.

    Args:
        sweep: what to do.
        console: False keeps standard error silent.

    Raises:
        LucaError: one clear sentence; trials that ended are kept.
    """
    check_job_storage(sweep.experiment.storage)
    storage = Storage.open(sweep.experiment.storage)
    storage.check_writable()
    streams = sweep.streams()
    sweep = sweep.on(streams)
    folder = sweep_folder(sweep.id, storage)
    quiet = sweep.experiment.tracking.wandb.model_copy(update={"mode": "disabled"})
    tracking = sweep.experiment.tracking.model_copy(update={"wandb": quiet})
    lock = BankLock(storage, f"{sweep.directory}/lock", what=f"sweep '{sweep.id}'", run=sweep.id)
    with lock, build_trackers(tracking, folder, console=console) as tracker:
        write_atomic(storage, f"{sweep.directory}/experiment.yaml", sweep.to_yaml().encode())
        group = WandbGroup(
            sweep.experiment.tracking.wandb,
            folder,
            sweep.id,
            config={"experiment": sweep.experiment.name, "seed": sweep.experiment.seed},
            notify=tracker.notify,
        )
        result = _Running(sweep, storage, streams, tracker, group).run()
        page = write_sweep(sweep, result, storage)
        group.finish(result)
        return Outcome(result, page)


def sweep_folder(name: str, storage: Storage) -> Path:
    """A folder on this machine for a sweep's log: in a local storage, else beside the working directory."""
    if storage.is_local:
        return Path(storage.local_path(f"sweeps/{name}"))
    return Path("luca-runs").resolve() / name


class _Running:
    """One invocation of a sweep."""

    def __init__(
        self,
        sweep: Sweep,
        storage: Storage,
        streams: list[Any],
        tracker: CompositeTracker,
        group: WandbGroup,
    ) -> None:
        self._sweep, self._storage, self._tracker = sweep, storage, tracker
        self._group = group
        self._streams = streams
        e = sweep.experiment
        self._tasks = len(streams[0][0].tasks)
        # Trial processes may work elsewhere, so they are told an absolute path.
        self._uri = str(storage.local_path()) if storage.is_local else e.storage
        self._source = FeatureSource(
            streams=[(stream, plan) for stream, plan, _ in streams],
            backbone=e.backbone,
            features=e.features,
            seed=e.seed,
            storage=storage,
            uri=self._uri,
            cluster=e.cluster,
        )
        self._shown = False
        self._conductor = Conductor(
            SweepLedger(storage, sweep.directory),
            make_proposals(
                sweep.space, e.search, tasks=self._tasks, seed=e.seed, trials=sweep.trials
            ),
            sweep.resolve,
            published=PUBLISHED,
            trials=sweep.trials,
            tasks=self._tasks,
            settings=e.search,
            identity=sweep.id,
            changed=self._on_change,
        )
        self._shown = True

    def run(self) -> SweepResult:
        """Trials until there are enough."""
        started = time.perf_counter()
        before = self._conductor.ended
        images = 0
        tell = self._tracker.notify
        for warning in self._streams[0][0].warnings:
            tell(warning, "warning")
        if self._conductor.complete:
            tell(f"sweep {self._sweep.id} is complete: {plural(before, 'trial')}, nothing to run")
        else:
            verb = "continues" if before else "starts"
            tell(
                f"sweep {self._sweep.id} {verb}: {plural(self._conductor.total, 'trial')}, {before:,} done, over "
                f"{', '.join(self._sweep.space.domains)}"
            )
            images = self._run_trials()
        result = self._result(images)
        if not result.finished:
            errors = [record.error for record in result.records if record.error]
            raise SettingsError(
                f"no trial of sweep {self._sweep.id} finished; the first one that failed: {errors[0]}"
                if errors
                else f"no trial of sweep {self._sweep.id} finished"
            )
        done = self._conductor.ended - before
        seconds = time.perf_counter() - started
        if done:
            tell(f"{plural(done, 'trial')} in {seconds:.0f} s, {60 * done / seconds:.1f} a minute")
        return result

    def _run_trials(self) -> int:
        from pipelines.cluster import check_shared_storage, join_ray

        e = self._sweep.experiment
        ready = cached_features(self._source, self._known_key())
        images = 0
        if ready is None and self._streams[0][0].reader.kind == "images":
            check_buildable(e.backbone)
        with join_ray(e.cluster, notify=self._tracker.notify) as ray:
            check_shared_storage(self._uri)
            for attempt in range(_MENDINGS):
                if ready is None:
                    ready = self._extract(ray, verify=attempt > 0)
                    images += ready.images
                try:
                    self._tune(ray, ready)
                except FeatureCorruptionError as error:
                    if attempt == _MENDINGS - 1:
                        raise
                    self._tracker.notify(f"{error}; it is extracted again", "warning")
                    ready = None
                else:
                    break
        return images

    def _extract(self, ray: RayHandle, *, verify: bool) -> ReadyFeatures:
        def progress(done: int, total: int) -> None:
            self._tracker.handle(StageProgress("features", done, total, "images"))

        ready = extract_features(
            self._source, ray, notify=self._tracker.notify, progress=progress, verify=verify
        )
        facts = json.dumps({"backbone": ready.key})
        write_atomic(self._storage, f"{self._sweep.directory}/features.json", facts.encode())
        return ready

    def _known_key(self) -> str | None:
        """The backbone's cache key as this sweep found it; a sweep goes on with the features it began with."""
        data = self._storage.read_if_exists(f"{self._sweep.directory}/features.json")
        if data is None:
            return None
        try:
            return str(json.loads(data)["backbone"])
        except (ValueError, KeyError, TypeError):
            return None

    def _tune(self, ray: RayHandle, ready: ReadyFeatures) -> None:
        from pipelines.cluster import Bundle, CapacityWatch, wait_for_resources
        from pipelines.search.tuner import TuneRun, run_trials

        e = self._sweep.experiment
        streams = tuple(
            sweep_stream(stream, plan, backbone=ready.key, seed=seed)
            for stream, plan, seed in self._streams
        )
        cpus, concurrent = _room(ray, e.cluster.cpus_per_trainer, e.search.max_concurrent)
        one, timeout = [Bundle(float(cpus))], e.cluster.wait_for_resources_seconds
        notify = self._tracker.notify
        room = wait_for_resources(one, timeout=timeout, notify=notify)
        if room is not None:
            room.release()
        # Trials beside others may wait as long as they like: Tune begins them when there is room.
        watch = CapacityWatch(one, timeout=timeout, notify=notify, actors=tuple)
        left = max(1, self._conductor.total - self._conductor.ended)
        plan = SweepPlan(
            storage=self._uri,
            streams=streams,
            views=e.features.views,
            rungs=rungs(e.search, self._tasks),
            check=e.stream.validation_fraction > 0,
            threads=e.cluster.cpus_per_trainer,
        )
        with _scratch() as folder:
            run_trials(
                self._conductor,
                plan,
                TuneRun(
                    concurrent=min(concurrent, left),
                    cpus=cpus,
                    folder=folder,
                    check_room=watch.check,
                ),
            )

    def _on_change(self, record: TrialRecord) -> None:
        if not self._shown or record.status == "proposed":
            return
        self._tracker.notify(
            ending_line(record, self._tasks), "info" if record.ended else "warning"
        )
        if record.ended:
            self._group.trial(record)
        done, total = self._conductor.ended, self._conductor.total
        self._tracker.handle(StageProgress("trials", done, total, "trials"))

    def _result(self, images: int) -> SweepResult:
        e = self._sweep.experiment
        records = self._conductor.records
        validation = [
            sum(len(task.validation) for task in stream.tasks) for stream, _, _ in self._streams
        ]
        return SweepResult(
            id=self._sweep.id,
            name=e.name,
            records=records,
            tolerance=e.search.tolerance,
            tasks=self._tasks,
            backbone_images=images,
            importance=importances(records, self._sweep.space.domains, seed=e.seed),
            about={
                "router": e.scoring.routers[0],
                "validation samples": round(sum(validation) / len(validation)),
                "repeats": e.search.repeats,
                "method": e.search.method,
                "objective": e.search.objective,
            },
        )


def _room(ray: RayHandle, threads: int, most: int | None) -> tuple[int, int]:
    """CPUs a trial reserves and how many trials fit at a time, by the CPUs of single nodes."""
    nodes = [int(node.cpus) for node in ray.resources().nodes]
    cpus = min(threads, max(nodes, default=1)) if ray.local else threads
    cpus = max(1, cpus)
    fitting = sum(node // cpus for node in nodes)
    return cpus, max(1, fitting if most is None else min(most, fitting))


@contextmanager
def _scratch() -> Iterator[Path]:
    """A short-named temporary folder for Tune's own files."""
    folder = Path(tempfile.mkdtemp(prefix="luca-tune-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
