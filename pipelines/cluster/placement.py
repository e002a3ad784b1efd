"""How many shards, trainers and evaluators to start, and what each one reserves.

A pure function of the settings and of what the cluster has, so that it can be tested without Ray.  Two
rules keep it free of deadlocks:

- On a joined cluster an actor reserves its CPUs for life, and the plan never adds an actor that does not
  fit beside the others.  The registry and, on small clusters, the evaluators reserve nothing.
- A local start reserves no CPU at all.  The operating system shares the cores, every actor has a fixed
  number of threads, and nothing can wait for a CPU that another actor holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.cluster.capacity import (
    Bundle,
    ClusterResources,
    Room,
    amount,
    unplaced,
)
from pipelines.cluster.settings import Auto, ClusterSettings
from workers.errors import ClusterError

Role = Literal["shard", "trainer", "evaluator", "learner"]

SHARD_MEMORY = 1536 * 2**20
"""Bytes a shard with a ViT-B/16 on the CPU takes with room to spare; bounds the automatic count only."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True)
class RolePlan:
    """``count`` actors of one kind, each reserving ``num_cpus`` and ``num_gpus``, with ``threads`` threads."""

    role: Role
    count: int
    num_cpus: float
    num_gpus: float
    threads: int

    def options(self, *, spread: bool = False) -> dict[str, Any]:
        """Keyword arguments for ``ActorClass.options``."""
        options = _options(self.num_cpus, self.num_gpus, self.threads)
        if spread:
            options["scheduling_strategy"] = "SPREAD"
        return options


@dataclass(frozen=True)
class ActorPlan:
    """The actors of a run.  ``notes`` are sentences worth showing to the user.

    ``learners`` are the workers that Ray Train will start for the trainers when several learn one task
    together; the trainers themselves then only wait and reserve nothing.
    """

    shards: RolePlan
    trainers: RolePlan
    learners: RolePlan | None
    evaluators: RolePlan
    spread: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def roles(self) -> tuple[RolePlan, RolePlan, RolePlan]:
        return self.shards, self.trainers, self.evaluators

    def options(self, role: Role) -> dict[str, Any]:
        """Keyword arguments for ``ActorClass.options`` of a shard, trainer or evaluator."""
        plan = next(plan for plan in self.roles if plan.role == role)
        return plan.options(spread=self.spread)

    @property
    def registry_options(self) -> dict[str, Any]:
        """The registry mostly waits for storage: it reserves nothing and so never blocks another."""
        return _options(0.0, 0.0, 1)

    def bundles(self) -> tuple[Bundle, ...]:
        """What must be free for all actors to start, the largest first; empty when nothing is reserved."""
        plans = [*self.roles, *([self.learners] if self.learners is not None else [])]
        bundles = [Bundle(p.num_cpus, p.num_gpus) for p in plans for _ in range(p.count)]
        return tuple(sorted((b for b in bundles if b.as_ray()), key=lambda b: (-b.gpus, -b.cpus)))


def _options(num_cpus: float, num_gpus: float, threads: int) -> dict[str, Any]:
    return {
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "runtime_env": {"env_vars": {name: str(threads) for name in THREAD_VARIABLES}},
    }


def plan_actors(
    settings: ClusterSettings,
    resources: ClusterResources,
    *,
    backbone: bool = True,
    learns: bool = True,
) -> ActorPlan:
    """How many actors of each kind, and what each reserves.

    Counts given in the settings are kept: on a joined cluster the run then waits until it can give
    them.  Automatic counts are those that fit beside each other now, with at least one of each kind
    that is needed and no more trainers than tasks in flight.

    Args:
        settings: the experiment's cluster settings.
        resources: what the cluster has now.
        backbone: whether shards run a backbone; without one (ready features) they get no GPU unless
            ``gpus_per_shard`` says so.
        learns: whether there is anything to learn; without it there are no trainers, and nothing is kept for them.

    Raises:
        ClusterError: a local start lacks a GPU that the settings ask for.
    """
    trainers = settings.trainers if learns else 0
    shard_gpus = _gpus_per_shard(settings, resources, backbone, trainers)
    if resources.local:
        return _plan_local(settings, resources, shard_gpus, trainers)
    return _plan_joined(settings, resources, shard_gpus, trainers)


def _gpus_per_shard(
    settings: ClusterSettings,
    resources: ClusterResources,
    backbone: bool,
    trainers: int | Auto,
) -> float:
    """The share of a GPU per shard when it is left to us: all that others leave, evenly."""
    if settings.gpus_per_shard != "auto":
        return settings.gpus_per_shard
    if not backbone or resources.gpus < 1e-9:
        return 0.0
    room = Room(resources.nodes)
    learners = _count(trainers, 1) * settings.workers_per_task
    for count, gpus in (
        (learners, settings.gpus_per_trainer),
        (_count(settings.evaluators, 1), settings.gpus_per_evaluator),
    ):
        for _ in range(count):
            room.take(Bundle(0.0, gpus))
    if room.gpus < 1e-9:
        return 0.0
    if settings.shards == "auto":
        return _floor(min(1.0, room.largest_device))
    return _floor(min(1.0, room.largest_device, room.gpus / settings.shards))


def _floor(share: float) -> float:
    """A share of a GPU that packs: 1, or 1/n for whole n, or hundredths when that is all there is."""
    if share >= 1:
        return 1.0
    unit = 1.0 / math.ceil(1.0 / share - 1e-9)
    return math.floor(unit * 1e4) / 1e4


def _plan_local(
    settings: ClusterSettings,
    resources: ClusterResources,
    shard_gpus: float,
    stated_trainers: int | Auto,
) -> ActorPlan:
    cpus = max(1, int(resources.cpus))
    together = settings.workers_per_task
    alone = not settings.gpus_per_trainer and together == 1
    trainers = _count(
        stated_trainers, min(settings.tasks_in_flight, max(1, cpus // 4)) if alone else 1
    )
    evaluators = _count(settings.evaluators, 1)
    if shard_gpus:
        others = trainers * together * settings.gpus_per_trainer
        others += evaluators * settings.gpus_per_evaluator
        fitting = int((resources.gpus - others) / shard_gpus + 1e-6)
    else:
        in_memory = int(min(resources.memory, 2**50) // SHARD_MEMORY)
        fitting = min(cpus // settings.cpus_per_shard, in_memory)
    shards = _count(settings.shards, max(1, fitting))
    share = math.floor(100 * resources.cpus / max(1, trainers * together)) / 100
    plan = ActorPlan(
        RolePlan("shard", shards, 0.0, shard_gpus, settings.cpus_per_shard),
        *_trainers(settings, trainers, 0.0 if together == 1 else min(1.0, share)),
        RolePlan(
            "evaluator", evaluators, 0.0, settings.gpus_per_evaluator, settings.cpus_per_evaluator
        ),
    )
    missing = unplaced(plan.bundles(), resources)
    if missing:
        asked = sum(bundle.gpus for bundle in plan.bundles())
        raise ClusterError(
            f"cluster: the actors ask for {amount(asked, 'GPU')} and this machine offers "
            f"{resources.gpus:g}; lower gpus_per_shard, gpus_per_trainer, gpus_per_evaluator "
            "or the counts, or join a cluster that has them"
        )
    return plan


def _plan_joined(
    settings: ClusterSettings,
    resources: ClusterResources,
    shard_gpus: float,
    trainers: int | Auto,
) -> ActorPlan:
    room = Room(resources.when_idle().nodes)
    cpus = room.cpus
    notes: list[str] = []
    sizes: dict[Role, Bundle] = {
        "shard": Bundle(settings.cpus_per_shard, shard_gpus),
        "trainer": Bundle(0.0),
        "evaluator": Bundle(settings.cpus_per_evaluator, settings.gpus_per_evaluator),
    }
    if trainers:
        sizes["trainer"] = Bundle(settings.cpus_per_trainer, settings.gpus_per_trainer)
    asked: dict[Role, int | Auto] = {
        "shard": settings.shards,
        "trainer": trainers,
        "evaluator": settings.evaluators,
    }
    together = settings.workers_per_task
    one_each = sum(size.cpus for size in sizes.values())
    alone = together == 1 or not trainers
    automatic = alone and all(count in ("auto", 0) for count in asked.values())
    if 0 < cpus < one_each and automatic:
        sizes["evaluator"] = Bundle(0.0, settings.gpus_per_evaluator)
        if cpus < sizes["shard"].cpus + sizes["trainer"].cpus:
            sizes = {role: Bundle(0.0, size.gpus) for role, size in sizes.items()}
            notes.append(
                f"the cluster has {amount(cpus, 'CPU')} for {one_each:g} threads: "
                "actors share them without reserving any"
            )
    counts = {role: 1 if count == "auto" else count for role, count in asked.items()}
    for role, count in counts.items():
        for _ in range(count * together if role == "trainer" else count):
            room.take(sizes[role])
    wished: dict[Role, int] = {
        "trainer": min(settings.tasks_in_flight, int(cpus) // 4) if together == 1 else 1,
        "evaluator": min(4, int(cpus) // 16),
        "shard": int(min(resources.memory, 2**50) // SHARD_MEMORY),
    }
    for role, wish in wished.items():
        if asked[role] != "auto" or not sizes[role].as_ray():
            continue
        while counts[role] < wish and room.take(sizes[role]):
            counts[role] += 1

    def planned(role: Role, threads: int) -> RolePlan:
        return RolePlan(role, counts[role], sizes[role].cpus, sizes[role].gpus, threads)

    return ActorPlan(
        planned("shard", settings.cpus_per_shard),
        *_trainers(settings, counts["trainer"], sizes["trainer"].cpus),
        planned("evaluator", settings.cpus_per_evaluator),
        spread=len(resources.nodes) > 1,
        notes=tuple(notes),
    )


def _trainers(
    settings: ClusterSettings, count: int, cpus: float
) -> tuple[RolePlan, RolePlan | None]:
    """The trainers, and the workers that learn for them when several learn one task together."""
    gpus, threads = settings.gpus_per_trainer, settings.cpus_per_trainer
    if settings.workers_per_task == 1 or not count:
        return RolePlan("trainer", count, cpus, gpus, threads), None
    learners = count * settings.workers_per_task
    return (
        RolePlan("trainer", count, 0.0, 0.0, threads),
        RolePlan("learner", learners, cpus, gpus, threads),
    )


def _count(stated: int | Auto, automatic: int) -> int:
    return stated if isinstance(stated, int) else automatic
