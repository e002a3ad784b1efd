"""Waiting for the CPUs and GPUs of a plan, in words, and for a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pipelines.cluster.capacity import Bundle, ClusterResources, amount, unplaced
from pipelines.cluster.joining import cluster_resources
from pipelines.cluster.messages import Notify
from workers.errors import ClusterError

REPEAT_SECONDS = 30.0


def wait_for_resources(
    bundles: Sequence[Bundle],
    *,
    timeout: float,
    notify: Notify,
    read: Callable[[], ClusterResources] = cluster_resources,
    request: Callable[[Sequence[Bundle]], None] | None = None,
    poll_seconds: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return once every bundle has room; an autoscaler, if there is one, is asked for the bundles.

    After a wait the request stands: without it an autoscaler takes back at once what came first and has been idle
    since.  :class:`CapacityWatch` withdraws it when the actors are there.

    Args:
        bundles: what must be free, ``ActorPlan.bundles()``.
        timeout: seconds to wait at most; 0 looks once.
        notify: told what is missing, when that changes and every 30 seconds.
        read: what the cluster has now.
        request: tells the autoscaler what is wanted, and with no bundles that nothing more is.
        poll_seconds, clock, sleep: time, for tests.

    Returns:
        Whether there was anything to wait for, and the request stands.

    Raises:
        ClusterError: the time is up; the message says what is missing.
    """
    request = request_from_autoscaler if request is None else request
    start = clock()
    missing = unplaced(bundles, read())
    if not missing:
        return False
    request(bundles)
    try:
        said, said_at = "", -REPEAT_SECONDS
        while True:
            resources = read()
            missing = unplaced(bundles, resources)
            if not missing:
                return True
            sentence = shortage(missing, resources)
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
        request(())
        raise


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


def request_from_autoscaler(bundles: Sequence[Bundle]) -> None:
    """Ask Ray's autoscaler to make room for the bundles; without an autoscaler this does nothing."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[bundle.as_ray() for bundle in bundles])
