"""Walks a stream: keeps the pipeline of actors full, commits tasks in order, resumes where storage says it stopped.

The driver holds no results of its own.  What is learned is in the bank, features are in the cache, predictions are
in the run's folder; a driver that is killed and started again looks there and goes on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import results
from orchestrator.gate import Gate
from orchestrator.task_inputs import TaskInputs
from orchestrator.tracking import (
    Notice,
    PartExtracted,
    StageProgress,
    TaskEvaluated,
    TaskLearned,
    VersionCommitted,
)
from pipelines.actors import Loop, fetch, value_of
from pipelines.evaluation import EvaluationFlow, EvaluationPlan
from pipelines.extraction import FeatureFlow
from pipelines.learning import LearningFlow, LearningPlan
from workers.errors import DataError
from workers.learned import Committed, LearnInfo
from workers.scored import Scored
from workers.storage.features import FeatureCache

if TYPE_CHECKING:
    from orchestrator.preparation import Prepared
    from orchestrator.tracking import CompositeTracker
    from pipelines.fleet import Fleet
    from workers.data_shard import FeatureOrigin
    from workers.extraction import PartResult


@dataclass(frozen=True)
class Outcome:
    """What an invocation of a run came to.

    Attributes:
        version, digest: the bank's newest version.
        tasks_learned: tasks learned in this invocation.
        backbone_images: images sent through the backbone in this invocation.
        cache: parts found (``hits``), parts computed (``misses``), ``bytes_written``.
        infos: how each task was learned, whenever it was.
        seconds: by stage; for stages that overlap, the actors' busy time.
    """

    version: int
    digest: str
    tasks_learned: int
    backbone_images: int
    cache: Mapping[str, int]
    infos: Sequence[Mapping[str, Any]]
    seconds: Mapping[str, float]


class Driver:
    """One invocation of a run.

    Args:
        prepared: the validated run.
        fleet: its actors.
        tracker: told everything that happens.
    """

    def __init__(self, prepared: Prepared, fleet: Fleet, tracker: CompositeTracker) -> None:
        self._prepared = prepared
        self._experiment = prepared.experiment
        self._fleet = fleet
        self._tracker = tracker
        self._loop = Loop()
        self._count = len(prepared.tasks)
        self._seconds: dict[str, float] = defaultdict(float)
        self._tasks_learned = 0
        self._version: Committed | None = None
        self._infos: dict[int, Mapping[str, Any]] = {}
        self._admitted = self._committed = prepared.learned
        self._evaluated: set[int] = set()

    def run(self) -> Outcome:
        """Learn and score every task of the stream.

        Raises:
            LucaError: one clear sentence; what was committed stays, nothing is half-written.
        """
        started = time.perf_counter()
        asked = self._fleet.shards[0].origin.remote()
        origin: FeatureOrigin = value_of(asked, self._loop, self._turn)
        for note in origin.notes:
            self._tracker.notify(note)
        self._seconds["actors and backbone"] = time.perf_counter() - started
        self._origin = origin
        self._features = self._feature_flow()
        self._inputs = TaskInputs(self._prepared, self._features, backbone=origin.key)
        registry = self._fleet.registry(origin.info)
        # Opening the bank takes a process's start; a refusal is raised wherever the loop turns next.
        self._loop.watch(registry.open.remote(), self._on_opened)
        self._check_images()
        self._evaluation = self._evaluation_flow()
        self._learning = self._learning_flow(registry) if self._fleet.trainers else None
        self._gate = Gate(
            self._experiment,
            registry,
            self._tracker,
            tasks=[prepared.id for prepared in self._prepared.tasks],
            bank=self._prepared.bank,
            versions=self._prepared.versions,
        )
        self._walk()
        fetch(registry.close.remote())
        assert self._version is not None
        return Outcome(
            version=self._version.version,
            digest=self._version.digest,
            tasks_learned=self._tasks_learned,
            backbone_images=self._features.images,
            cache={
                "hits": self._features.cached_parts,
                "misses": self._features.computed_parts,
                "bytes_written": self._features.stored_bytes,
            },
            infos=[self._infos[index] for index in sorted(self._infos)],
            seconds={
                **self._seconds,
                "features": self._features.busy_seconds,
                "evaluation": self._evaluation.busy_seconds,
            },
        )

    # -- flows -----------------------------------------------------------------------------------------------

    def _feature_flow(self) -> FeatureFlow:
        settings = self._experiment.features
        return FeatureFlow(
            self._prepared.plan,
            self._fleet.pool("shards", self._loop),
            FeatureCache(self._prepared.storage),
            backbone=self._origin.key,
            views=settings.views,
            tolerance=settings.tolerate_unreadable,
            hand_on=not self._prepared.storage.is_local,
            extracted=self._on_part,
        )

    def _learning_flow(self, registry: Any) -> LearningFlow:
        p, e = self._prepared, self._experiment
        shared = p.head.shared if p.head is not None else {}
        plan = LearningPlan(
            requests=self._inputs.learn_request,
            headers=self._inputs.header,
            keys=self._inputs.learning_keys,
            first=p.learned,
            unified=e.learning.objective == "unified",
            whiten=e.whitening == "first_task",
            whitening=shared.get("whitening"),
            head=shared.get("head"),
        )
        return LearningFlow(
            plan,
            self._loop,
            self._fleet,
            registry,
            self._features,
            learned=self._on_learned,
            committed=self._on_committed,
        )

    def _evaluation_flow(self) -> EvaluationFlow:
        settings = self._experiment.scoring
        plan = EvaluationPlan(
            tested=lambda i: len(self._prepared.tasks[i].task.test) > 0,
            tests=self._inputs.test_part,
            trains=self._inputs.train_part,
            keys=self._inputs.scoring_keys,
            routers=settings.reported_routers,
            baselines=bool(settings.baselines),
        )
        return EvaluationFlow(plan, self._loop, self._fleet, self._features)

    # -- before anything is learned --------------------------------------------------------------------------

    def _check_images(self) -> None:
        """Decode every image that is not cached yet, so that a bad file stops the run before it learns."""
        p = self._prepared
        unlearned = p.tasks[p.learned :]
        pairs = [
            pair
            for prepared in unlearned
            for split in ("train", "validation", "test")
            for pair in self._features.keys(getattr(prepared.task, split), views=split == "train")
        ]
        missing = self._features.missing(pairs)
        self._images_total = sum(len(p.plan.parts[part].rows) for part, _ in missing)
        if p.stream.reader.kind != "images" or not self._experiment.features.check_images:
            return
        started = time.perf_counter()
        problems: dict[str, None] = {}
        pool = self._fleet.pool("shards", self._loop)
        unseen = sorted({part for part, _ in missing})
        left = len(unseen)

        def done(found: tuple[str, ...]) -> None:
            nonlocal left
            left -= 1
            problems.update(dict.fromkeys(found))

        for part in unseen:
            pool.submit(
                lambda shard, part=part: shard.check.remote(p.plan.samples_of(part)),  # type: ignore[misc]
                done,
            )
        while left:
            self._turn()
        if len(problems) > self._experiment.features.tolerate_unreadable:
            more = f" ({len(problems) - 1} more like it)" if len(problems) > 1 else ""
            raise DataError(
                f"{next(iter(problems))}{more}; nothing was learned: mend or remove such files, or set "
                "features.tolerate_unreadable to leave them out"
            )
        self._seconds["image check"] = time.perf_counter() - started

    # -- the walk --------------------------------------------------------------------------------------------

    def _walk(self) -> None:
        results.discard_damaged_predictions(self._prepared.run_dir)
        scored = results.prediction_keys(self._prepared.run_dir)
        for index in range(self._prepared.learned):
            self._resume(index, scored.get(index))
        self._progress("learning")
        while len(self._evaluated) < self._count or len(self._loop):
            self._admit()
            assert len(self._loop), "tasks are left, and nothing is under way"
            self._turn()

    def _turn(self) -> None:
        """Let what is ready happen, and see that every actor has room."""
        self._loop.turn()
        self._fleet.check_room()

    def _admit(self) -> None:
        """Let tasks in while few enough are between extraction and commit, and few enough wait to be scored."""
        window = self._experiment.cluster.tasks_in_flight
        while (
            self._admitted < self._count
            and self._admitted - self._committed < window
            and self._admitted - len(self._evaluated) < 4 * window
        ):
            self._start(self._admitted)
            self._admitted += 1

    def _start(self, index: int) -> None:
        learning = self._learning
        assert learning is not None
        self._features.need(index, self._inputs.learning_keys(index), lambda: learning.learn(index))
        self._features.need(index, self._inputs.keys(index, "test"), lambda: None)

    def _resume(self, index: int, scored: str | None) -> None:
        """A task that the bank has: its module is there, and its predictions, made from ``scored``, may be."""
        head = self._prepared.head
        assert head is not None
        record = head.tasks[index]
        self._infos[index] = record.info
        self._tracker.handle(
            TaskLearned(
                index,
                record.name,
                seconds=0.0,
                steps=int(record.info.get("steps", 0)),
                losses=tuple(record.info.get("losses", ())),
                stored_parameters=int(record.info.get("stored_parameters", 0)),
                nonzero_parameters=int(record.info.get("nonzero_parameters", 0)),
                cached=True,
            )
        )
        version = self._prepared.versions.get(index + 1)
        if version is None or scored == self._prepared.predictions_key(index, version.digest):
            self._evaluated.add(index)
            return
        self._evaluate(index, Committed(version.version, version.digest, index + 1))

    def _evaluate(self, index: int, version: Committed) -> None:
        self._evaluation.evaluate(
            index, version.version, lambda scored: self._on_scored(index, version, scored)
        )

    # -- what happens ----------------------------------------------------------------------------------------

    def _on_part(self, task: int, rows: int, result: PartResult) -> None:
        self._tracker.handle(
            PartExtracted(
                task,
                result.key.part,
                rows=rows,
                images=result.images,
                cached=result.cached,
                seconds=result.seconds,
                skipped=result.skipped,
            )
        )
        for note in (*result.notes, *result.skipped):
            self._tracker.handle(Notice("warning", note))
        if result.images and self._features.started is not None:
            done = self._features.images
            elapsed = time.perf_counter() - self._features.started
            self._tracker.handle(
                StageProgress(
                    "features", done, max(done, self._images_total), "images", done / elapsed
                )
            )

    def _on_learned(self, index: int, info: LearnInfo) -> None:
        self._tasks_learned += 1
        self._infos[index] = info.to_json()
        self._seconds["learning"] += info.seconds
        self._tracker.handle(
            TaskLearned(
                index,
                info.task,
                seconds=info.seconds,
                steps=info.steps,
                losses=info.losses,
                stored_parameters=info.stored_parameters,
                nonzero_parameters=info.nonzero_parameters,
            )
        )
        self._progress("learning")

    def _on_opened(self, head: Committed | None) -> None:
        if self._version is None:
            self._version = head

    def _on_committed(self, index: int, version: Committed) -> None:
        self._committed = index + 1
        self._version = version
        self._seconds["commit"] += version.seconds
        self._tracker.handle(
            VersionCommitted(
                index,
                self._experiment.bank_name,
                version.version,
                version.digest,
                version.seconds,
            )
        )
        self._evaluate(index, version)

    def _on_scored(self, index: int, version: Committed, scored: Scored) -> None:
        if not self._gate.active:
            self._finish(index, version, scored, None)
            return
        known = self._inputs.validation(index)
        if not known:
            text = f"version {version.version} was not judged: its tasks have no validation samples"
            self._tracker.handle(Notice("warning", text))
            self._finish(index, version, scored, None)
            return
        self._evaluation.score(
            index,
            version.version,
            [part for part, _ in known],
            [pair for _, pairs in known for pair in pairs],
            self._experiment.scoring.routers[:1],
            lambda validated: self._finish(index, version, scored, validated),
        )

    def _finish(
        self, index: int, version: Committed, scored: Scored, validated: Scored | None
    ) -> None:
        """Judge a version, then keep its predictions: once they are there, a resumed run leaves both alone."""
        if validated is not None:
            self._gate.judge(index, version, validated)
        rows = results.PredictionRows()
        for method, made in scored.methods.items():
            rows.add(
                method=method,
                after_task=index,
                task=scored.task,
                sample=scored.sample,
                label=scored.label,
                predicted=made.predicted,
                routed_task=made.routed_task,
                confidence=made.confidence,
                routing_confidence=made.routing_confidence,
                log_prob_true=made.log_prob_true,
            )
        key = self._prepared.predictions_key(index, version.digest)
        results.write_chunk(self._prepared.run_dir, index, rows, key=key)
        metrics = {
            method: {"accuracy": float((made.predicted == scored.label).mean())}
            for method, made in scored.methods.items()
        }
        self._tracker.handle(TaskEvaluated(index, version.version, metrics, scored.seconds))
        self._evaluated.add(index)
        self._progress("evaluation")

    def _progress(self, stage: str) -> None:
        done = self._prepared.learned + self._tasks_learned
        if stage == "evaluation":
            done = len(self._evaluated)
        self._tracker.handle(StageProgress(stage, done, self._count))
