"""Samples to cached features: read, decode, transform, frozen backbone, one part at a time.

Batches never span parts, so the bytes of a part do not depend on who computes it or on what else is computed.  A part
that is already cached costs a look into the cache and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from workers.errors import BackboneError, CorruptionError, DataError
from workers.storage.features import (
    FeatureCache,
    FeaturePart,
    FeatureSettings,
    PartKey,
    cache_key,
    checked_features,
    part_digest,
    ready_key,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from numpy.typing import NDArray

    from workers.modeling.backbone import Backbone, BackboneSettings
    from workers.samples import SampleReader
    from workers.storage.filesystem import Storage

_READ_BYTES = 256 * 1024 * 1024
"""About how many encoded bytes of a part are held in memory at once."""


@dataclass(frozen=True)
class PartRequest:
    """A part to extract: the rows of its samples (at most ``part_size``, one class, domain and split), and a view."""

    samples: pa.Table
    view: int = 0


@dataclass(frozen=True)
class PartResult:
    """What became of a request.

    Attributes:
        key: where the part lies in the cache.
        table: columns ``id`` and ``feature`` (:meth:`FeaturePart.to_table`); unreadable samples are not in it.
        images: pictures sent through the backbone for it; 0 when it was cached or ready-made.
        skipped: the samples that are not in the table, as "id: reason" sentences.
        seconds: wall time.
        notes: what a user should know (a batch halved for lack of memory, a damaged file computed again).
        cached: whether the part was already there.
        stored_bytes: bytes written to the cache.
    """

    key: PartKey
    table: pa.Table
    images: int = 0
    skipped: tuple[str, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    cached: bool = False
    stored_bytes: int = 0

    @property
    def part(self) -> FeaturePart:
        """The table as a feature part, sharing its memory."""
        return FeaturePart.from_table(self.table)


@dataclass
class _Work:
    """What happens while one part is computed."""

    images: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Extractor:
    """Extracts parts with one backbone on one device.

    ``backbone`` is loaded when first needed: with a warm cache it never is, apart from its fingerprint.
    """

    def __init__(
        self,
        *,
        reader: SampleReader,
        backbone: Backbone | BackboneSettings | None,
        settings: FeatureSettings,
        seed: int,
        storage: Storage,
        feature_width: int | None = None,
        device: str = "cpu",
    ) -> None:
        """Loads the backbone.

        Args:
            reader: what gives the samples' bytes, pictures or ready features.
            backbone: settings or a loaded backbone; None with ready features.
            settings: batch size, dtypes, tolerance.
            seed: of the augmented views.
            storage: where the cache lies.
            feature_width: d of ready features.
            device: of the backbone: "cpu", "cuda" or "auto".  An actor without a GPU must say "cpu".

        Raises:
            BackboneError: the backbone cannot be loaded.
            DataError: ready features with augmented views or of unknown width.
        """
        self._reader = reader
        self._settings = settings
        self._seed = seed
        self._cache = FeatureCache(storage)
        self._batch_size = settings.batch_size
        self._pixels: NDArray[np.uint8] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._backbone: Backbone | None = None
        if reader.kind == "features":
            if settings.views:
                raise DataError(
                    f"features.views={settings.views} needs pictures, and the source gives ready features: "
                    "set features.views=0"
                )
            if feature_width is None:
                raise DataError("ready features need their width")
            self.width = feature_width
            self.backbone_key = ready_key(feature_width, settings.dtype)
            return
        if backbone is None:
            raise BackboneError("pictures need a backbone: set backbone.name")
        self._backbone = self._loaded(backbone, device)
        self.width = self._backbone.width
        self.backbone_key = cache_key(self._backbone.fingerprint, settings.dtype)
        threads = settings.decode_threads
        if threads is None:
            threads = _gpu_decode_threads() if self._backbone.device.type == "cuda" else 0
        if threads:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    def _loaded(self, backbone: Backbone | BackboneSettings, device: str) -> Backbone:
        from workers.modeling.backbone import Backbone

        if isinstance(backbone, Backbone):
            return backbone
        return Backbone.load(backbone, device=device, precision=self._settings.precision)

    def backbone_info(self) -> dict[str, Any]:
        """JSON-able description of where features come from, for a bank's manifest."""
        if self._backbone is None:
            return {
                "name": "ready-features",
                "width": self.width,
                "fingerprint": f"ready-features-{self.width}",
            }
        return self._backbone.info()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about the backbone."""
        return () if self._backbone is None else self._backbone.notes

    def key(self, request: PartRequest) -> PartKey:
        """Where the request's part lies in the cache."""
        digest = part_digest(request.samples, view=request.view, seed=self._seed)
        return PartKey(self.backbone_key, digest, request.view)

    def extract(self, request: PartRequest) -> PartResult:
        """The part from the cache, or computed and cached.

        Raises:
            DataError: more unreadable pictures than tolerated, NaN or infinite features; names the sample.
            StorageError: the cache cannot be written.
        """
        started = time.perf_counter()
        key = self.key(request)
        work = _Work()
        part = self._cached(key, request, work)
        if part is not None:
            return PartResult(
                key=key,
                table=part.to_table(),
                skipped=_left_out(request.samples, part),
                seconds=time.perf_counter() - started,
                notes=tuple(work.notes),
                cached=True,
            )
        features = self._compute(request, work)
        ids = request.samples.column("id").combine_chunks()
        if work.skipped:
            kept = np.delete(np.arange(len(ids)), list(work.skipped))
            ids = ids.take(kept)
        part = self._part(key, ids, features)
        stored = self._cache.write(key, part.ids, part.features)
        return PartResult(
            key=key,
            table=part.to_table(),
            images=work.images,
            skipped=tuple(work.skipped[row] for row in sorted(work.skipped)),
            seconds=time.perf_counter() - started,
            notes=tuple(work.notes),
            stored_bytes=stored,
        )

    # -- cache -----------------------------------------------------------------------------------------------

    def _cached(self, key: PartKey, request: PartRequest, work: _Work) -> FeaturePart | None:
        if not self._cache.has(key):
            return None
        try:
            part = self._cache.read(key)
        except CorruptionError as error:
            work.notes.append(f"computed again: {error}")
            return None
        missing = len(request.samples) - len(part)
        # A part may have been cached under a laxer tolerance; then the pictures are looked at again.
        return part if missing <= self._settings.tolerate_unreadable else None

    def _part(self, key: PartKey, ids: pa.Array, features: NDArray[Any]) -> FeaturePart:
        import pyarrow as pa

        if isinstance(ids, pa.ChunkedArray):
            ids = pa.concat_arrays(ids.chunks)
        if features.dtype != self._settings.dtype:
            # First as computed: a feature too large for float16 and one that was never finite differ.
            checked_features(ids, features, hint="")
            with np.errstate(over="ignore"):
                features = features.astype(self._settings.dtype)
        return FeaturePart(key, ids.cast(pa.string()), features)

    # -- computing -------------------------------------------------------------------------------------------

    def _compute(self, request: PartRequest, work: _Work) -> NDArray[Any]:
        if self._backbone is None:
            return self._ready(request)
        import torch

        outputs = [self._embed(pixels, work) for pixels in self._batches(request, work)]
        if not outputs:
            return np.empty((0, self.width), dtype=np.float32)
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined.cpu().numpy()

    def _ready(self, request: PartRequest) -> NDArray[Any]:
        rows = self._reader.read(request.samples)
        if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != self.width:
            found = rows.shape if isinstance(rows, np.ndarray) else type(rows).__name__
            raise DataError(
                f"the source gives features of shape {found}, expected [{len(request.samples)}, {self.width}]"
            )
        return rows if rows.dtype in (np.float16, np.float32) else rows.astype(np.float32)

    def _embed(self, pixels: NDArray[np.uint8], work: _Work) -> torch.Tensor:
        """One batch through the backbone; for lack of memory in halves, from then on."""
        import torch

        assert self._backbone is not None
        outputs = []
        start = 0
        while start < len(pixels):
            chunk = pixels[start : start + self._batch_size]
            try:
                outputs.append(self._backbone.embed(chunk))
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                self._halve(len(chunk), work)
                continue
            start += len(chunk)
        work.images += len(pixels)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _halve(self, tried: int, work: _Work) -> None:
        assert self._backbone is not None
        device = self._backbone.device
        if device.type == "cuda":
            import torch

            torch.cuda.empty_cache()
        if tried == 1:
            raise BackboneError(
                f"backbone '{self._backbone.name}' does not fit into the memory of {device} even with one picture: "
                "choose a smaller backbone or backbone.image_size, or give the actor more memory"
            )
        self._batch_size = max(1, tried // 2)
        work.notes.append(
            f"out of memory on {device} with {tried} pictures: goes on with batches of {self._batch_size}; "
            f"set features.batch_size={self._batch_size} to start there"
        )

    # -- pictures --------------------------------------------------------------------------------------------

    def _batches(self, request: PartRequest, work: _Work) -> Iterator[NDArray[np.uint8]]:
        """uint8 batches [<= batch_size, h, w, 3] of the readable pictures, in the samples' order."""
        rows = _Rows(request.samples)
        if self._pool is None:
            for first, encoded in self._reads(request.samples):
                yield from self._decoded_here(first, encoded, rows, request.view, work)
        else:
            yield from self._decoded_ahead(rows, request, work)

    def _reads(self, samples: pa.Table) -> Iterator[tuple[int, list[Any]]]:
        """(row of the first, encoded pictures) in runs of whole batches that fit into memory."""
        size = self._settings.batch_size
        start = 0
        while start < len(samples):
            run = self._reader.read(samples.slice(start, size))
            yield start, list(run)
            start += len(run)
            total = sum(len(one) if isinstance(one, (bytes, memoryview)) else 0 for one in run)
            mean = max(1, total // max(1, len(run)))
            batches = max(1, _READ_BYTES // (mean * self._settings.batch_size))
            size = self._settings.batch_size * batches

    def _decoded_here(
        self, first: int, encoded: list[Any], rows: _Rows, view: int, work: _Work
    ) -> Iterator[NDArray[np.uint8]]:
        buffer = self._buffer()
        filled = 0
        for offset, one in enumerate(encoded):
            try:
                self._picture(one, rows, first + offset, view, buffer[filled])
            except DataError as error:
                self._skip(first + offset, error, work)
                continue
            filled += 1
            if filled == len(buffer):
                yield buffer
                filled = 0
        if filled:
            yield buffer[:filled]

    def _decoded_ahead(
        self, rows: _Rows, request: PartRequest, work: _Work
    ) -> Iterator[NDArray[np.uint8]]:
        """The same batches, decoded by the pool while the backbone works on the batches before."""
        assert self._pool is not None
        pending: list[tuple[NDArray[np.uint8], list[tuple[int, Future[None]]]]] = []
        try:
            for first, encoded in self._reads(request.samples):
                for start in range(0, len(encoded), self._settings.batch_size):
                    batch = encoded[start : start + self._settings.batch_size]
                    buffer = self._new_buffer(len(batch))
                    jobs = [
                        (
                            first + start + i,
                            self._pool.submit(
                                self._picture, one, rows, first + start + i, request.view, buffer[i]
                            ),
                        )
                        for i, one in enumerate(batch)
                    ]
                    pending.append((buffer, jobs))
                    if len(pending) > 2:
                        yield from self._finished(*pending.pop(0), work)
            while pending:
                yield from self._finished(*pending.pop(0), work)
        finally:
            for _, jobs in pending:
                for _, job in jobs:
                    job.cancel()

    def _finished(
        self, buffer: NDArray[np.uint8], jobs: list[tuple[int, Future[None]]], work: _Work
    ) -> Iterator[NDArray[np.uint8]]:
        good = []
        for i, (row, job) in enumerate(jobs):
            try:
                job.result()
            except DataError as error:
                self._skip(row, error, work)
            else:
                good.append(i)
        if good:
            yield buffer if len(good) == len(jobs) else buffer[good]

    def _picture(
        self, data: Any, rows: _Rows, row: int, view: int, target: NDArray[np.uint8]
    ) -> None:
        from workers.modeling.images import decode
        from workers.modeling.views import view_generator, write_pixels

        assert self._backbone is not None
        image = decode(data, rows.name(row), max_pixels=self._settings.max_pixels)
        transform = self._backbone.transform
        if view == 0:
            write_pixels(transform.test(image), target)
        else:
            rng = view_generator(self._seed, rows.content[row], view)
            write_pixels(transform.train(image, rng), target)

    def _skip(self, row: int, error: DataError, work: _Work) -> None:
        work.skipped[row] = str(error)
        if len(work.skipped) > self._settings.tolerate_unreadable:
            limit = self._settings.tolerate_unreadable
            if limit == 0:
                raise error
            raise DataError(
                f"{error} (and {limit} more before it: features.tolerate_unreadable={limit} is used up)"
            ) from error

    def _buffer(self) -> NDArray[np.uint8]:
        if self._pixels is None:
            self._pixels = self._new_buffer(self._settings.batch_size)
        return self._pixels

    def _new_buffer(self, size: int) -> NDArray[np.uint8]:
        assert self._backbone is not None
        transform = self._backbone.transform
        return np.empty((size, transform.height, transform.width, 3), dtype=np.uint8)


class _Rows:
    """The columns of a part that pictures need, as Python values."""

    def __init__(self, samples: pa.Table) -> None:
        self.content: list[str] = samples.column("content").to_pylist()
        self._ids: list[str] = samples.column("id").to_pylist()
        self._locations: list[str] = samples.column("location").to_pylist()
        self._rows: list[int] = samples.column("row").to_pylist()

    def name(self, row: int) -> str:
        """The file, and where it holds many samples, the sample's id and row as well."""
        if self._rows[row] < 0:
            return self._locations[row]
        return f"{self._ids[row]} (row {self._rows[row]} of {self._locations[row]})"


def _left_out(samples: pa.Table, part: FeaturePart) -> tuple[str, ...]:
    if len(samples) == len(part):
        return ()
    there = set(part.ids.to_pylist())
    rows = _Rows(samples)
    return tuple(
        f"image '{rows.name(row)}' was unreadable when its part was computed"
        for row, sample in enumerate(samples.column("id").to_pylist())
        if sample not in there
    )


def _gpu_decode_threads() -> int:
    import os

    return min(8, os.cpu_count() or 1)


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
