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
) -> None:
    """Return once every bundle has room; an autoscaler, if there is one, is asked for the bundles.

    Args:
        bundles: what must be free, ``ActorPlan.bundles()``.
        timeout: seconds to wait at most; 0 looks once.
        notify: told what is missing, when that changes and every 30 seconds.
        read: what the cluster has now.
        request: tells the autoscaler what is wanted, and with no bundles that nothing more is.
        poll_seconds, clock, sleep: time, for tests.

    Raises:
        ClusterError: the time is up; the message says what is missing.
    """
    request = request_from_autoscaler if request is None else request
    start = clock()
    missing = unplaced(bundles, read())
    if not missing:
        return
    request(bundles)
    try:
        said, said_at = "", -REPEAT_SECONDS
        while missing:
            resources = read()
            missing = unplaced(bundles, resources)
            if not missing:
                return
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
    finally:
        request(())


class CapacityWatch:
    """Notices that a lost node has left too little room for actors that are started already.

    Ray starts lost actors again as soon as there is room, and until then their work waits without a word.
    Call :meth:`check` now and then, for instance on every turn of a loop; it looks every few seconds.

    Args:
        bundles: what all actors need, ``ActorPlan.bundles()``.
        timeout: seconds that a shortage may last.
        notify: told what is missing, when that changes, and when there is room again.
        read, request, clock: as for :func:`wait_for_resources`.
        every: seconds between looks.
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        *,
        timeout: float,
        notify: Notify,
        read: Callable[[], ClusterResources] = cluster_resources,
        request: Callable[[Sequence[Bundle]], None] | None = None,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bundles = tuple(bundles)
        self._timeout = timeout
        self._notify = notify
        self._read = read
        self._request = request_from_autoscaler if request is None else request
        self._every = every
        self._clock = clock
        self._looked = clock()
        self._since: float | None = None
        self._said = ""

    def check(self) -> None:
        """Look, if it is time to.

        Raises:
            ClusterError: the shortage has lasted longer than ``timeout``.
        """
        now = self._clock()
        if not self._bundles or now - self._looked < self._every:
            return
        self._looked = now
        resources = self._read().when_idle()
        missing = unplaced(self._bundles, resources)
        if not missing:
            if self._since is not None:
                self._since, self._said = None, ""
                self._request(())
                self._notify("there is room for all actors again")
            return
        sentence = shortage(missing, resources)
        if self._since is None:
            self._since = now
            self._request(self._bundles)
        elif now - self._since >= self._timeout:
            self._request(())
            raise ClusterError(
                f"a node was lost, and {now - self._since:.0f} s later there is still no room for "
                f"{sentence}; what was committed is safe, and the same command continues"
            )
        if sentence != self._said:
            self._notify(f"a node was lost; waiting for {sentence}")
            self._said = sentence


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
