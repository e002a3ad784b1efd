"""The actors of a run: started as planned, pooled, and stopped together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.actors import ActorPool, Loop, starting
from pipelines.cluster import (
    ActorPlan,
    CapacityWatch,
    ClusterSettings,
    RayHandle,
    RolePlan,
    check_shared_storage,
    plan_actors,
    wait_for_resources,
)
from workers.modeling.backbone import BackboneSettings
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings
from workers.samples import SampleReader
from workers.storage.features import FeatureSettings

Kind = Literal["shards", "trainers", "evaluators"]


@dataclass(frozen=True, kw_only=True)
class FleetSpec:
    """What the actors of a run are made from.

    Attributes:
        storage: URI, the same on every node.
        tasks: number of tasks in the stream.
        settings: what modules are learned with, as the bank keeps it.
        defaults: what the bank notes for predictions.
        learns: whether anything is left to learn; without it no trainer is planned, waited for or started.
    """

    storage: str
    bank: str
    run: str
    code: str
    seed: int
    class_names: Sequence[str]
    tasks: int
    reader: SampleReader
    feature_width: int | None
    backbone: BackboneSettings
    features: FeatureSettings
    luca: LucaSettings
    learning: LearningSettings
    evaluation: EvaluationSettings
    cluster: ClusterSettings
    settings: Mapping[str, Any]
    defaults: Mapping[str, Any]
    learns: bool = True
    task_known: bool = False


class Fleet:
    """Handles of all actors of a run.  A context manager; leaving it kills them.

    Raises:
        ClusterError: the cluster does not give what the run asks for within the time set, or a node that came
            meanwhile does not see the storage.
    """

    def __init__(self, spec: FleetSpec, ray: RayHandle, *, notify: Callable[[str], None]) -> None:
        self.spec = spec
        self._ray = ray
        self.plan: ActorPlan = plan_actors(
            spec.cluster,
            ray.resources(),
            backbone=spec.reader.kind == "images",
            learns=spec.learns,
        )
        for note in self.plan.notes:
            notify(note)
        bundles, timeout = self.plan.bundles(), spec.cluster.wait_for_resources_seconds
        room = wait_for_resources(bundles, timeout=timeout, notify=notify)
        if room is not None:
            try:
                check_shared_storage(spec.storage)  # as the nodes see it that have come
            finally:
                room.release()
        self._watch = CapacityWatch(bundles, timeout=timeout, notify=notify)
        self._all: list[Any] = []
        self._pools: dict[str, ActorPool] = {}
        try:
            notify(starting(spec.reader.kind))
            self.shards = self._start_shards()
            self.trainers = self._start_trainers() if self.plan.trainers.count else []
            self.evaluators = self._start_evaluators()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop every actor; what they know is in storage."""
        import ray

        if self._ray.messages is not None:
            self._ray.messages.mute()
        for actor in self._all:
            ray.kill(actor)
        self._all.clear()

    def check_room(self) -> None:
        """Say when actors have no room, since a node was lost or other work took it; for every turn of a loop.

        Raises:
            ClusterError: that has lasted for ``cluster.wait_for_resources_seconds``.
        """
        self._watch.check()

    def pool(self, kind: Kind, loop: Loop) -> ActorPool:
        """A pool over all actors of a kind."""
        if kind not in self._pools:
            self._pools[kind] = ActorPool(loop, getattr(self, kind))
        return self._pools[kind]

    def registry(self, backbone: Mapping[str, Any]) -> Any:
        """Start the registry, the bank's only writer, for features of this backbone."""
        from workers.registry import registry_class

        spec = self.spec
        actor = (
            registry_class()
            .options(**self.plan.registry_options)
            .remote(
                spec.storage,
                spec.bank,
                backbone=dict(backbone),
                settings=dict(spec.settings),
                defaults=dict(spec.defaults),
                run=spec.run,
                code=spec.code,
            )
        )
        self._all.append(actor)
        return actor

    def _start_shards(self) -> list[Any]:
        from workers.data_shard import data_shard_class

        spec, role = self.spec, self.plan.shards
        shards = self._start(
            role,
            data_shard_class().options(**self.plan.options("shard")),
            (spec.storage,),
            reader=spec.reader,
            backbone=spec.backbone,
            settings=spec.features,
            seed=spec.seed,
            feature_width=spec.feature_width,
            device="cuda" if role.num_gpus else "cpu",
            threads=role.threads,
        )
        for shard in shards[1:]:  # the driver asks the first; the others load theirs meanwhile
            shard.origin.remote()
        return shards

    def _start_trainers(self) -> list[Any]:
        from pipelines.data_parallel import trainer_class_for

        role = self.plan.trainers
        device = {"device": "cuda"} if role.num_gpus else {}
        return self._start(
            role,
            trainer_class_for(self.plan).options(**self.plan.options("trainer")),
            (self.spec.storage,),
            threads=role.threads,
            **device,
        )

    def _start_evaluators(self) -> list[Any]:
        from workers.evaluator import evaluator_class

        spec, role = self.spec, self.plan.evaluators
        return self._start(
            role,
            evaluator_class().options(**self.plan.options("evaluator")),
            (spec.storage, spec.bank),
            class_names=tuple(spec.class_names),
            settings=spec.evaluation,
            seed=spec.seed,
            luca=spec.luca,
            learning=spec.learning,
            tasks=spec.tasks,
            task_known=spec.task_known,
            threads=role.threads,
        )

    def _start(self, role: RolePlan, made: Any, args: tuple[Any, ...], **kwargs: Any) -> list[Any]:
        actors = [made.remote(*args, **kwargs) for _ in range(role.count)]
        self._all.extend(actors)
        return actors
