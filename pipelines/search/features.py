"""Before trials start: the features of training and validation samples are in the cache, whatever it takes.

The only part of a sweep that may run a backbone.  When all parts are there already and the backbone's cache key is
known, no process is started at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.actors import ActorPool, Loop, starting, value_of
from pipelines.cluster import (
    Bundle,
    CapacityWatch,
    ClusterSettings,
    RayHandle,
    check_shared_storage,
    plan_actors,
    wait_for_resources,
)
from pipelines.extraction import FeatureFlow
from pipelines.search.planning import needed_parts
from workers.storage.features import FeatureCache, FeatureSettings, ready_key

if TYPE_CHECKING:
    from pipelines.features import FeaturePlan
    from pipelines.stream import Stream
    from workers.data_shard import FeatureOrigin
    from workers.extraction import PartResult
    from workers.modeling.backbone import BackboneSettings
    from workers.storage.filesystem import Storage


@dataclass(frozen=True, kw_only=True)
class FeatureSource:
    """Where a sweep's features come from.

    Attributes:
        streams: with their feature plans, one a repeat.
        seed: of augmented views.
        uri: the storage as every node opens it.
    """

    streams: Sequence[tuple[Stream, FeaturePlan]]
    backbone: BackboneSettings
    features: FeatureSettings
    seed: int
    storage: Storage
    uri: str
    cluster: ClusterSettings


@dataclass(frozen=True)
class ReadyFeatures:
    """Features that are in the cache.

    Attributes:
        key: the backbone's cache key.
        images: images that went through the backbone now.
    """

    key: str
    images: int = 0


def cached_features(source: FeatureSource, key: str | None) -> ReadyFeatures | None:
    """The features, if all of them are cached under a known key; None when a data shard has to look."""
    stream = source.streams[0][0]
    if stream.reader.kind == "features" and stream.feature_width is not None:
        key = ready_key(stream.feature_width, source.features.dtype)
    if key is None:
        return None
    cache = FeatureCache(source.storage)
    wanted = set(_keys(source, key))
    return ReadyFeatures(key) if cache.has_many(wanted) == wanted else None


def extract_features(
    source: FeatureSource,
    ray: RayHandle,
    *,
    notify: Callable[[str], None],
    progress: Callable[[int, int], None],
    verify: bool = False,
) -> ReadyFeatures:
    """Have data shards extract what is missing.

    Args:
        source: what is needed.
        ray: a joined Ray.
        notify: told sentences for the user.
        progress: told images done, and images there are to do.
        verify: have shards look at cached parts too, and rebuild damaged ones.

    Raises:
        BackboneError: the backbone cannot be had.
        ClusterError: the cluster has no room for the shards within the time set.
        DataError: more samples are unreadable than tolerated.
    """
    reader = source.streams[0][0].reader
    plan = plan_actors(source.cluster, ray.resources(), backbone=reader.kind == "images")
    role = plan.shards
    bundles = [Bundle(role.num_cpus, role.num_gpus)] * role.count
    bundles = [bundle for bundle in bundles if bundle.as_ray()]
    timeout = source.cluster.wait_for_resources_seconds
    room = wait_for_resources(bundles, timeout=timeout, notify=notify)
    if room is not None:
        try:
            check_shared_storage(source.uri)
        finally:
            room.release()
    watch = CapacityWatch(bundles, timeout=timeout, notify=notify)
    loop, shards = Loop(), list[Any]()

    def turn() -> None:
        loop.turn()
        watch.check()

    try:
        notify(starting(reader.kind))
        shards.append(_start_shard(source, plan))
        origin: FeatureOrigin = value_of(shards[0].origin.remote(), loop, turn)
        for note in origin.notes:
            notify(note)
        total = _missing_images(source, origin.key)
        if total or verify:
            shards += [_start_shard(source, plan) for _ in range(role.count - 1)]
        look = _Round(source, origin.key, total, notify=notify, progress=progress)
        return look.run(ActorPool(loop, shards), turn, verify=verify)
    finally:
        import ray as ray_module

        for shard in shards:
            ray_module.kill(shard)


class _Round:
    """One look at all streams in turn, so that a part that two of them need is extracted once."""

    def __init__(
        self,
        source: FeatureSource,
        key: str,
        total: int,
        *,
        notify: Callable[[str], None],
        progress: Callable[[int, int], None],
    ) -> None:
        self._source, self._key, self._total = source, key, total
        self._notify, self._progress = notify, progress
        self._images = 0

    def run(self, pool: ActorPool, turn: Callable[[], None], *, verify: bool) -> ReadyFeatures:
        """Extract what is missing; with ``verify`` shards look at cached parts as well.

        ``turn`` turns the pool's loop.
        """
        settings = self._source.features
        for stream, plan in self._source.streams:
            flow = FeatureFlow(
                plan,
                pool,
                FeatureCache(self._source.storage),
                backbone=self._key,
                views=settings.views,
                tolerance=settings.tolerate_unreadable,
                hand_on=False,
                extracted=self._extracted,
            )
            pairs = needed_parts(stream, plan, backbone=self._key, views=settings.views)
            ready: list[None] = []
            (flow.again if verify else flow.need)(0, pairs, partial(ready.append, None))
            while not ready:
                turn()
        return ReadyFeatures(self._key, self._images)

    def _extracted(self, task: int, rows: int, result: PartResult) -> None:  # noqa: ARG002
        for note in (*result.notes, *result.skipped):
            self._notify(note)
        self._images += result.images
        if result.images:
            self._progress(self._images, max(self._total, self._images))


def _start_shard(source: FeatureSource, plan: Any) -> Any:
    from workers.data_shard import data_shard_class

    stream = source.streams[0][0]
    return (
        data_shard_class()
        .options(**plan.options("shard"))
        .remote(
            source.uri,
            reader=stream.reader,
            backbone=source.backbone,
            settings=source.features,
            seed=source.seed,
            feature_width=stream.feature_width,
            device="cuda" if plan.shards.num_gpus else "cpu",
            threads=plan.shards.threads,
        )
    )


def _keys(source: FeatureSource, key: str) -> list[Any]:
    views = source.features.views
    return [
        part
        for stream, plan in source.streams
        for _, part in needed_parts(stream, plan, backbone=key, views=views)
    ]


def _missing_images(source: FeatureSource, key: str) -> int:
    """Samples, once a view, in parts that are not cached."""
    cache = FeatureCache(source.storage)
    missing: dict[Any, int] = {}
    for stream, plan in source.streams:
        pairs = needed_parts(stream, plan, backbone=key, views=source.features.views)
        there = cache.has_many({part for _, part in pairs})
        for number, part in pairs:
            if part not in there:
                missing[part] = len(plan.parts[number].rows)
    return sum(missing.values())
