"""Noticing, while a run goes on, that actors which were started have no room.

Ray says nothing about it: an actor that lost its node, or whose CPUs other work took in the meantime, waits for ever
and its calls with it.  An autoscaler sees such actors by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.cluster.capacity import Bundle, ClusterResources, amount, unplaced
from pipelines.cluster.joining import cluster_resources
from pipelines.cluster.messages import Notify
from pipelines.cluster.waiting import shortage
from workers.errors import ClusterError

PATIENCE_SECONDS = 30.0
"""How long an actor may go without a process before it counts as waiting for room: one that has room starts in less."""


@dataclass(frozen=True)
class ActorState:
    """An actor of this driver that has not ended.  ``pid`` is that of its last process, 0 before the first."""

    id: str
    state: Literal["starting", "alive", "restarting"]
    pid: int


_STATES: dict[str, Literal["starting", "alive", "restarting"]] = {
    "ALIVE": "alive",
    "RESTARTING": "restarting",
}


class CapacityWatch:
    """Notices that a lost node, or other work, has left too little room for actors that are started already.

    Call :meth:`check` now and then, for instance on every turn of a loop; it looks every few seconds.

    Args:
        bundles: what all actors need, ``ActorPlan.bundles()``.
        timeout: seconds that a shortage may last.
        notify: told what is missing, when that changes, and when there is room again.
        read, clock: as for :func:`wait_for_resources`.
        actors: the actors of this driver.
        every: seconds between looks.
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        *,
        timeout: float,
        notify: Notify,
        read: Callable[[], ClusterResources] = cluster_resources,
        actors: Callable[[], Iterable[ActorState]] | None = None,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bundles = tuple(bundles)
        self._timeout = timeout
        self._notify = notify
        self._read = read
        self._actors = own_actors if actors is None else actors
        self._every = every
        self._clock = clock
        self._looked = clock()
        self._since: float | None = None
        self._said = ""
        self._processes: dict[str, int] = {}
        self._without: dict[str, float] = {}

    def check(self) -> None:
        """Look, if it is time to.

        Raises:
            ClusterError: the shortage has lasted longer than ``timeout``.
        """
        now = self._clock()
        if not self._bundles or now - self._looked < self._every:
            return
        self._looked = now
        resources = self._read()
        found = self._lost_node(resources) or self._taken(resources, now)
        if found is None:
            if self._since is not None:
                self._since, self._said = None, ""
                self._notify("there is room for all actors again")
            return
        sentence, ending = found
        if self._since is None:
            self._since = now
        elif now - self._since >= self._timeout:
            raise ClusterError(
                f"{ending.format(seconds=now - self._since)}; what was committed is safe, and the same command "
                "continues (cluster.wait_for_resources_seconds is how long to wait)"
            )
        if sentence != self._said:
            self._notify(sentence)
            self._said = sentence

    def _lost_node(self, resources: ClusterResources) -> tuple[str, str] | None:
        """What to say, now and in the end, when the nodes could not hold all actors even if nothing else ran."""
        idle = resources.when_idle()
        missing = unplaced(self._bundles, idle)
        if not missing:
            return None
        sentence = shortage(missing, idle)
        return (
            f"a node was lost; waiting for {sentence}",
            f"a node was lost, and {{seconds:.0f}} s later there is still no room for {sentence}",
        )

    def _taken(self, resources: ClusterResources, now: float) -> tuple[str, str] | None:
        """The same when actors have been without a process for a while: something else runs where they would."""
        without = set()
        for actor in self._actors():
            # One that starts again shows its former process until it is given a new one.
            former = self._processes.get(actor.id, actor.pid) if actor.state == "restarting" else 0
            if actor.state == "alive":
                self._processes[actor.id] = actor.pid
            elif actor.pid in (0, former):
                without.add(actor.id)
        self._without = {actor: self._without.get(actor, now) for actor in without}
        count = sum(now - since >= PATIENCE_SECONDS for since in self._without.values())
        if not count:
            return None
        who = f"{count} actor{'s' if count > 1 else ''}"
        have = self._free(resources)
        return (
            f"waiting for room for {who}: the cluster has {have}",
            f"{who} found no room in {{seconds:.0f}} s, since other work runs there: the cluster has {have}",
        )

    def _free(self, resources: ClusterResources) -> str:
        parts = [(resources.cpus, sum(node.idle[0] for node in resources.nodes), "CPU")]
        if any(bundle.gpus for bundle in self._bundles):
            parts.append((resources.gpus, sum(node.idle[1] for node in resources.nodes), "GPU"))
        return " and ".join(f"{amount(all_, unit)}, {free:g} free" for all_, free, unit in parts)


def own_actors() -> list[ActorState]:
    """The actors that this driver, and what it started, has under way.  Ray must have been joined."""
    import ray
    from ray._private.state import state

    job = ray.JobID.from_hex(ray.get_runtime_context().get_job_id())
    table = state.actor_table(None, job_id=job)
    return [
        ActorState(actor, _STATES.get(row["State"], "starting"), row["Pid"])
        for actor, row in table.items()
        if row["State"] != "DEAD"
    ]
