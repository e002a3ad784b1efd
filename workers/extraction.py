"""Samples to cached features: read, decode, transform, frozen backbone, one part at a time.

Batches never span parts, so the bytes of a part do not depend on who computes it or on what else is computed.  A part
that is already cached costs a look into the cache and nothing else.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from workers.errors import BackboneError, CorruptionError, DataError, StorageError
from workers.picture_batches import PictureBatches, left_out
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

_GPU_DECODE_THREADS = 8
"""Threads that decode ahead of a GPU when the settings do not say."""


@dataclass(frozen=True)
class PartRequest:
    """A part to extract: the rows of its samples (at most ``part_size``, one class, domain and split), and a view."""

    samples: pa.Table
    view: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels as one Arrow stream; Ray would take every column by itself, which lasts ten times as long."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.samples.schema) as writer:
            writer.write_table(self.samples)
        return _arrived, (sink.getvalue().to_pybytes(), self.view)


def _arrived(samples: bytes, view: int) -> PartRequest:
    import pyarrow as pa

    return PartRequest(pa.ipc.open_stream(samples).read_all(), view)


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

    Not safe for several threads at once: batches share a buffer.
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
        self._batches: PictureBatches | None = None
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
            threads = _GPU_DECODE_THREADS if self._backbone.device.type == "cuda" else 0
        self._batches = PictureBatches(
            reader, self._backbone.transform, settings, seed=seed, threads=threads
        )

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
                skipped=left_out(request.samples, part),
                seconds=time.perf_counter() - started,
                notes=tuple(work.notes),
                cached=True,
            )
        features = self._compute(request, work)
        ids = request.samples.column("id").combine_chunks()
        if work.skipped:
            ids = ids.take(np.delete(np.arange(len(ids)), list(work.skipped)))
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
        except StorageError:
            if self._cache.has(key):
                raise
            return None  # deleted by someone since the look
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
        if self._batches is None:
            return self._ready(request)
        import torch

        batches = self._batches.of(request.samples, request.view, work.skipped)
        outputs = [self._embed(pixels, work) for pixels in batches]
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


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
