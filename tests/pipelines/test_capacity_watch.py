"""Noticing that started actors have no room, without starting Ray."""

from __future__ import annotations

from pipelines.cluster import Bundle, CapacityWatch, ClusterResources, NodeResources
from pipelines.cluster.watching import ActorState
from workers.errors import ClusterError


def node(name: str, cpus: float, gpus: float = 0.0, **more: float) -> NodeResources:
    return NodeResources(name, f"host-{name}", cpus, gpus, **more)


def cluster(*nodes: NodeResources) -> ClusterResources:
    return ClusterResources(nodes)


def watched(
    states: list[ClusterResources],
    *,
    timeout: float,
    actors: list[list[ActorState]] | None = None,
    bundles: tuple[Bundle, ...] = (Bundle(1), Bundle(1)),
) -> tuple[list[str], ClusterError | None]:
    """Look at each state, 10 seconds apart: what was said, how it ended."""
    said: list[str] = []
    now = 0.0
    rows = iter(actors if actors is not None else [[]] * len(states))
    watch = CapacityWatch(
        bundles,
        timeout=timeout,
        notify=said.append,
        read=lambda: states.pop(0),
        actors=lambda: next(rows),
        clock=lambda: now,
    )
    try:
        while states:
            now += 5
            watch.check()
    except ClusterError as error:
        return said, error
    return said, None


ALIVE = ActorState("a", "alive", 7)
NEVER_STARTED = ActorState("b", "starting", 0)
CONSTRUCTING = ActorState("b", "starting", 9)
FULL = cluster(node("a", 4, free_cpus=0))


def test_busy_actors_are_no_shortage() -> None:
    busy = cluster(node("a", 2, free_cpus=0))
    assert watched([busy] * 3, timeout=30) == ([], None)


def test_a_lost_node_is_said_once_and_its_replacement_too() -> None:
    small, large = cluster(node("a", 1)), cluster(node("a", 1), node("b", 1))
    said, error = watched([large, small, small, small, large], timeout=60)
    assert said == [
        "a node was lost; waiting for 1 CPU: the cluster has 1",
        "there is room for all actors again",
    ]
    assert error is None


def test_a_node_that_is_not_replaced_ends_the_run_in_one_sentence() -> None:
    _, error = watched([cluster(node("a", 1))] * 9, timeout=30)
    assert "30 s later there is still no room for 1 CPU" in str(error)


def test_an_actor_whose_place_other_work_took_is_said_and_ends_the_run() -> None:
    said, error = watched([FULL] * 10, timeout=40, actors=[[ALIVE, NEVER_STARTED]] * 10)
    assert said == ["waiting for room for 1 actor: the cluster has 4 CPUs, 0 free"]
    assert "1 actor found no room in 40 s, since other work runs there" in str(error)
    assert "the same command continues" in str(error)


def test_an_actor_that_is_slow_to_construct_is_no_shortage() -> None:
    found = [[ALIVE, NEVER_STARTED]] * 2 + [[ALIVE, CONSTRUCTING]] * 8
    assert watched([FULL] * 10, timeout=0, actors=found) == ([], None)


def test_an_actor_that_starts_again_waits_until_it_has_another_process() -> None:
    restarting = ActorState("a", "restarting", 7)
    again = ActorState("a", "restarting", 8)
    found = [[ALIVE]] + [[restarting]] * 5 + [[again]]
    said, error = watched([FULL] * 7, timeout=60, actors=found)
    assert said == [
        "waiting for room for 1 actor: the cluster has 4 CPUs, 0 free",
        "there is room for all actors again",
    ]
    assert error is None


def test_free_gpus_are_said_where_actors_need_them() -> None:
    full = cluster(node("a", 4, 1, free_cpus=3, free_gpus=0))
    said, _ = watched([full] * 5, timeout=60, actors=[[NEVER_STARTED]] * 5, bundles=(Bundle(1, 1),))
    assert said == [
        "waiting for room for 1 actor: the cluster has 4 CPUs, 3 free and 1 GPU, 0 free"
    ]


def test_a_local_start_reserves_nothing_and_is_not_looked_at() -> None:
    unread: list[ClusterResources] = []
    watch = CapacityWatch(
        (), timeout=0, notify=print, read=lambda: unread[0], every=0.0, actors=list
    )
    watch.check()
