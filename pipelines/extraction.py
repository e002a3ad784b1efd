"""Keeping data shards busy with the parts that tasks need, in the order they need them, each part once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipelines.actors import ActorPool
from pipelines.features import FeaturePlan
from workers.errors import DataError, FeatureCorruptionError
from workers.extraction import PartRequest, PartResult
from workers.storage.features import FeatureCache, PartKey
from workers.wording import plural

if TYPE_CHECKING:
    from workers.feature_rows import FeatureRows

Ready = Callable[[], None]
Extracted = Callable[[int, int, PartResult], None]
"""Told the task, the number of samples in the part, and what became of it."""

REPEATS = 20
"""How often the parts of a task may turn out damaged or gone in one run; beyond, something destroys them."""


class FeatureFlow:
    """Requests parts from data shards and says when a task's parts are all there.

    Args:
        plan: how the stream is cut into parts.
        shards: pool of data-shard actors.
        cache: where parts lie.
        backbone: cache key of the backbone.
        views: augmented views of training parts, beside the test view.
        tolerance: unreadable samples that may be skipped in the whole run.
        hand_on: keep extracted tables in the object store for whoever reads next; useful where storage
            cannot be memory-mapped.
        extracted: told the task and the result of every part.

    Attributes:
        images: pictures that went through the backbone.
        cached_parts, computed_parts: parts that were there when first looked for, and those that were made.
        stored_bytes: bytes written to the cache.
        busy_seconds: time that shards spent on parts.
        started: when the first part was asked for, as of ``time.perf_counter``; None before.
    """

    def __init__(
        self,
        plan: FeaturePlan,
        shards: ActorPool,
        cache: FeatureCache,
        *,
        backbone: str,
        views: int,
        tolerance: int,
        hand_on: bool,
        extracted: Extracted,
    ) -> None:
        self._plan = plan
        self._shards = shards
        self._cache = cache
        self._backbone = backbone
        self._views = views
        self._tolerance = tolerance
        self._hand_on = hand_on
        self._extracted = extracted
        self._there: set[PartKey] = set()
        self._coming: dict[PartKey, list[Ready]] = {}
        self._tables: dict[PartKey, Any] = {}
        self._skipped: set[str] = set()
        self._repeats: Counter[int] = Counter()
        self.images = 0
        self.cached_parts = 0
        self.computed_parts = 0
        self.stored_bytes = 0
        self.busy_seconds = 0.0
        self.started: float | None = None

    def keys(self, rows: NDArray[np.int64], *, views: bool) -> list[tuple[int, PartKey]]:
        """Part positions and keys that these samples need."""
        wanted = range(self._views + 1) if views else range(1)
        return [
            (part, self._plan.key(part, view, self._backbone))
            for part in self._plan.parts_of(rows)
            for view in wanted
        ]

    def missing(self, pairs: Sequence[tuple[int, PartKey]]) -> list[tuple[int, PartKey]]:
        """Those that are neither cached nor being extracted, each once."""
        unknown = [
            pair
            for pair in dict.fromkeys(pairs)
            if pair[1] not in self._there and pair[1] not in self._coming
        ]
        found = self._cache.has_many(key for _, key in unknown)
        self.cached_parts += len(found)
        self._there |= found
        return [pair for pair in unknown if pair[1] not in found]

    def need(self, task: int, pairs: Sequence[tuple[int, PartKey]], ready: Ready) -> None:
        """Have the parts extracted where they are missing; then call ``ready()``."""
        missing = self.missing(pairs)
        waiting = {key for _, key in pairs if key not in self._there}
        if not waiting:
            ready()
            return
        left = len(waiting)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                ready()

        for _, key in missing:
            self._coming[key] = []
        for key in waiting:
            self._coming[key].append(one_less)
        for part, key in missing:
            self._submit(task, part, key)

    def again(self, task: int, pairs: Sequence[tuple[int, PartKey]], ready: Ready) -> None:
        """Look at parts that turned out damaged or gone once more: shards verify or rebuild each of them.

        Raises:
            FeatureCorruptionError: they are damaged or gone each time they are read.
        """
        self._repeats[task] += 1
        if self._repeats[task] > REPEATS:
            raise FeatureCorruptionError(
                f"feature parts of task {task} were damaged or gone again each of the {REPEATS} times that they "
                "were put right: see that every node sees the same storage, that nothing else deletes there, and "
                "that the disk is sound"
            )
        for _, key in pairs:
            self._there.discard(key)
            self._tables.pop(key, None)
        fresh = [pair for pair in dict.fromkeys(pairs) if pair[1] not in self._coming]
        for _, key in fresh:
            self._coming[key] = []
        for part, key in fresh:
            self._submit(task, part, key)
        self.need(task, pairs, ready)

    def tables(self, rows: FeatureRows, views: int) -> tuple[tuple[PartKey, ...], list[Any]]:
        """Keys and object references of parts that are at hand in the object store."""
        keys = [key for view in range(views + 1) for key in rows.keys_of_view(view)]
        held = [key for key in keys if key in self._tables]
        return tuple(held), [self._tables[key] for key in held]

    def let_go(self, keys: Iterable[PartKey]) -> None:
        """Forget tables that nobody will read soon; they stay cached."""
        for key in keys:
            self._tables.pop(key, None)

    def _submit(self, task: int, part: int, key: PartKey) -> None:
        request = PartRequest(samples=self._plan.samples_of(part), view=key.view)

        def call(shard: Any) -> Any:
            facts, table = shard.extract.options(num_returns=2).remote(request)
            if self._hand_on:
                self._tables[key] = table
            return facts

        def done(result: PartResult) -> None:
            self._arrived(task, part, key, result)

        if self.started is None:
            self.started = time.perf_counter()
        self._shards.submit(call, done)

    def _arrived(self, task: int, part: int, key: PartKey, result: PartResult) -> None:
        self.images += result.images
        self.stored_bytes += result.stored_bytes
        self.busy_seconds += result.seconds
        self.computed_parts += not result.cached
        self._skipped.update(result.skipped)
        if len(self._skipped) > self._tolerance:
            first = next(iter(result.skipped))
            raise DataError(
                f"{first} ({plural(len(self._skipped), 'unreadable sample')} so far, and "
                f"features.tolerate_unreadable is {self._tolerance})"
            )
        self._extracted(task, len(self._plan.parts[part].rows) - len(result.skipped), result)
        self._there.add(key)
        for ready in self._coming.pop(key, []):
            ready()
