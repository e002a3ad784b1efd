"""A run's driver with real workers in this process: Ray's calls are made one by one, in the order they were asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import pytest

import pipelines.cluster
from orchestrator import driver, gate
from orchestrator.commands.run import _fleet_spec
from orchestrator.driver import Driver, Outcome
from orchestrator.experiment import Experiment
from orchestrator.preparation import Prepared, prepare
from orchestrator.tracking import CompositeTracker
from pipelines import fleet
from pipelines.actors import ActorPool, Loop
from pipelines.fleet import FleetSpec
from workers.data_shard import DataShardImpl
from workers.errors import LucaError
from workers.evaluator import EvaluatorImpl
from workers.registry import RegistryImpl
from workers.trainer import TrainerImpl


class Reference:
    """A value that is made when somebody needs it, as in a cluster where every actor waits for its turn."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: list[Any] = []
        self._raised: LucaError | None = None

    def value(self) -> Any:
        if self._raised is not None:
            raise self._raised
        if not self._made:
            try:
                self._made.append(self._make())
            except LucaError as error:
                self._raised = error
                raise
        return self._made[0]


class Actor:
    """A plain object that is called as Ray's actors are."""

    def __init__(self, plain: object) -> None:
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        return Method(lambda *args: getattr(self.plain, name)(*args))


class Method:
    def __init__(self, call: Callable[..., Any], returns: int = 1) -> None:
        self._call, self._returns = call, returns

    def options(self, *, num_returns: int) -> Method:
        return Method(self._call, num_returns)

    def remote(self, *args: Any) -> Any:
        whole = Reference(lambda: self._call(*map(resolve, args)))
        if self._returns == 1:
            return whole
        return [Reference(lambda i=i: whole.value()[i]) for i in range(self._returns)]  # type: ignore[misc]


def resolve(value: Any) -> Any:
    """What a reference stands for; anything else is itself."""
    return value.value() if isinstance(value, Reference) else value


class InOrder(Loop):
    """Answers the oldest call at each turn."""

    def turn(self, *, timeout: float = 1.0) -> bool:
        reference = next(iter(self._pending))
        done, failed = self._pending.pop(reference)
        try:
            value = resolve(reference)
        except LucaError as error:
            if failed is None or not failed(error):
                raise
        else:
            done(value)
        return True


class LocalFleet:
    """The actors of a run as plain objects."""

    def __init__(self, spec: FleetSpec, *, evaluators: int = 1) -> None:
        self.spec = spec
        self._pools: dict[str, ActorPool] = {}
        self._registry: RegistryImpl | None = None
        self.shards = [
            Actor(
                DataShardImpl(
                    spec.storage,
                    reader=spec.reader,
                    backbone=spec.backbone,
                    settings=spec.features,
                    seed=spec.seed,
                    feature_width=spec.feature_width,
                    device="cpu",
                    threads=1,
                )
            )
        ]
        self.trainers = [Actor(TrainerImpl(spec.storage, threads=1))] if spec.learns else []
        self.evaluators = [Actor(self._evaluator()) for _ in range(evaluators)]

    def restart_evaluators(self) -> None:
        """As after a crash: they know nothing of what they were told."""
        for actor in self.evaluators:
            actor.plain = self._evaluator()

    def _evaluator(self) -> EvaluatorImpl:
        spec = self.spec
        return EvaluatorImpl(
            spec.storage,
            spec.bank,
            class_names=tuple(spec.class_names),
            settings=spec.evaluation,
            seed=spec.seed,
            luca=spec.luca,
            learning=spec.learning,
            tasks=spec.tasks,
            task_known=spec.task_known,
            threads=1,
        )

    def check_room(self) -> None:
        """Plain objects need none."""

    def pool(self, kind: str, loop: Loop) -> ActorPool:
        return self._pools.setdefault(kind, ActorPool(loop, getattr(self, kind)))

    def registry(self, backbone: dict[str, Any]) -> Actor:
        spec = self.spec
        self._registry = RegistryImpl(
            spec.storage,
            spec.bank,
            backbone=backbone,
            settings=spec.settings,
            run=spec.run,
            code="test",
            defaults=spec.defaults,
        )
        return Actor(self._registry)

    def __enter__(self) -> LocalFleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the bank's lock, as the end of the registry's process does."""
        if self._registry is not None:
            self._registry.close()


class Events:
    """A tracker that remembers."""

    fleet: LocalFleet

    def __init__(self) -> None:
        self.all: list[Any] = []

    def handle(self, event: Any) -> None:
        self.all.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.all if isinstance(event, kind)]


@dataclass
class InProcess:
    """A run that has ended."""

    prepared: Prepared
    outcome: Outcome
    events: Events

    @classmethod
    def run(cls, experiment: Experiment, *, evaluators: int, events: Events) -> InProcess:
        prepared = prepare(experiment)
        events.fleet = LocalFleet(_fleet_spec(prepared), evaluators=evaluators)
        walk = Driver(prepared, cast(Any, events.fleet), cast(CompositeTracker, events))
        try:
            return cls(prepared, walk.run(), events)
        finally:
            events.fleet.close()


def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the driver call plain objects."""
    monkeypatch.setattr(driver, "Loop", InOrder)
    for module in (driver, gate):
        monkeypatch.setattr(module, "fetch", resolve)


class NoRay:
    """What a run gets where it would join Ray."""

    def __enter__(self) -> NoRay:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was started."""

    closing = nullcontext


def commands_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a whole ``luca run`` happen in this process, with actors that are plain objects."""
    without_ray(monkeypatch)
    monkeypatch.setattr(pipelines.cluster, "join_ray", lambda *_, **__: NoRay())
    monkeypatch.setattr(pipelines.cluster, "check_shared_storage", lambda *_: 1)
    monkeypatch.setattr(fleet, "Fleet", lambda spec, *_, **__: LocalFleet(spec))
