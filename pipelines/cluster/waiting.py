"""Waiting for the CPUs and GPUs of a plan, in words, and for a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pipelines.cluster.capacity import Bundle, ClusterResources, amount, unplaced
from pipelines.cluster.joining import cluster_resources
from pipelines.cluster.messages import Notify
from workers.errors import ClusterError

REPEAT_SECONDS = 30.0


class Reservation(Protocol):
    """Room that is being asked for, and kept once it is there."""

    def ready(self) -> bool:
        """Whether the room is there, and kept."""

    def release(self) -> None:
        """Ask for nothing more, and give the room to whoever comes first."""


class GroupReservation:
    """A placement group: an autoscaler makes room for it, and it ends with the driver, however that ends.

    ``ray.autoscaler.sdk.request_resources`` would do neither: what it asks for stands until somebody asks for
    something else, and counts nodes that others use.
    """

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        from ray.util.placement_group import placement_group

        self._group = placement_group([bundle.as_ray() for bundle in bundles], strategy="PACK")

    def ready(self) -> bool:
        from ray.util.placement_group import placement_group_table

        return bool(placement_group_table(self._group)["state"] == "CREATED")

    def release(self) -> None:
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(self._group)


def wait_for_resources(
    bundles: Sequence[Bundle],
    *,
    timeout: float,
    notify: Notify,
    read: Callable[[], ClusterResources] = cluster_resources,
    reserve: Callable[[Sequence[Bundle]], Reservation] = GroupReservation,
    poll_seconds: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Reservation | None:
    """Return once every bundle has room; an autoscaler, if there is one, is asked for the bundles.

    Args:
        bundles: what must be free, ``ActorPlan.bundles()``.
        timeout: seconds to wait at most; 0 looks once.
        notify: told what is missing, when that changes and every 30 seconds.
        read: what the cluster has now.
        reserve: begins to ask for bundles.
        poll_seconds, clock, sleep: time, for tests.

    Returns:
        None when there was nothing to wait for; else the room that came, to be released right before the actors
        start: without it an autoscaler takes back at once what came first and has been idle since.

    Raises:
        ClusterError: the time is up; the message says what is missing.
    """
    start = clock()
    missing = unplaced(bundles, read())
    if not missing:
        return None
    reservation = reserve(bundles)
    try:
        sentence, said, said_at = "", "", -REPEAT_SECONDS
        while not reservation.ready():
            resources = read()
            missing = unplaced(bundles, resources)
            if missing or not sentence:  # where all fits, it is about to be ready
                sentence = shortage(missing or bundles, resources)
            now = clock() - start
            if now >= timeout:
                raise ClusterError(
                    f"waited {now:.0f} s for {sentence}; add nodes, lower cluster.shards, trainers, "
                    "evaluators or what each of them takes, or raise cluster.wait_for_resources_seconds"
                )
            if sentence != said or now - said_at >= REPEAT_SECONDS:
                notify(f"waiting for {sentence}")
                said, said_at = sentence, now
            sleep(min(poll_seconds, max(timeout - now, 0.01)))
    except BaseException:
        reservation.release()
        raise
    return reservation


def shortage(missing: Sequence[Bundle], resources: ClusterResources) -> str:
    """What is missing and what there is: ``1 GPU: the cluster has 0``."""
    parts = []
    for unit, wanted, total, free in (
        (
            "GPU",
            sum(b.gpus for b in missing),
            resources.gpus,
            sum(node.idle[1] for node in resources.nodes),
        ),
        (
            "CPU",
            sum(b.cpus for b in missing),
            resources.cpus,
            sum(node.idle[0] for node in resources.nodes),
        ),
    ):
        if wanted <= 0:
            continue
        there = f"the cluster has {total:g}"
        if free < total:
            there += f", {free:g} free"
        parts.append(f"{amount(wanted, unit)}: {there}")
        if unit == "GPU" and free < wanted:
            break
    largest = max(missing, key=lambda b: (b.gpus, b.cpus))
    if len(missing) == 1 or largest.cpus <= 1 >= largest.gpus:
        return parts[0]
    return f"{parts[0]} (up to {amount(max(largest.cpus, 0), 'CPU')} on one node)"
