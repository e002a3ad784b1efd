"""The data-shard actor: samples in, cached feature parts out.  A shell around extraction.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workers.extraction import Extractor, PartRequest, PartResult
from workers.images_check import unreadable_images
from workers.imports import spare_pandas
from workers.runtime import prepare_process
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    import pyarrow as pa

    from workers.modeling.backbone import BackboneSettings
    from workers.samples import SampleReader
    from workers.storage.features import FeatureSettings


@dataclass(frozen=True)
class FeatureOrigin:
    """Where features come from: the cache key of the backbone, its description, and what to tell the user."""

    key: str
    info: dict[str, Any]
    notes: tuple[str, ...]


class DataShardImpl:
    """Extracts the parts it is asked for, with one backbone on one device.

    The backbone is loaded when it is first needed, so that a constructor cannot fail: Ray reports an
    exception there as a dead actor.
    """

    def __init__(
        self,
        storage: str,
        *,
        reader: SampleReader,
        backbone: BackboneSettings,
        settings: FeatureSettings,
        seed: int,
        feature_width: int | None,
        device: str,
        threads: int,
    ) -> None:
        if reader.kind == "images":
            prepare_process(threads)
        else:  # ready features need no torch
            spare_pandas()
        self._settings = settings
        self._reader = reader
        self._storage = storage
        self._backbone = backbone
        self._seed = seed
        self._feature_width = feature_width
        self._device = device
        self._extractor: Extractor | None = None

    def origin(self) -> FeatureOrigin:
        """Load the backbone and say what it is.

        Raises:
            BackboneError: it is unknown, has no [CLS] token, or its weights cannot be had or do not fit.
        """
        extractor = self._loaded()
        return FeatureOrigin(extractor.backbone_key, extractor.backbone_info(), extractor.notes)

    def check(self, samples: pa.Table) -> tuple[str, ...]:
        """One sentence for each image that cannot be decoded."""
        return unreadable_images(self._reader, samples, max_pixels=self._settings.max_pixels)

    def extract(self, request: PartRequest) -> tuple[PartResult, pa.Table]:
        """Extract and cache a part: facts without the table for the driver, and the table."""
        result = self._loaded().extract(request)
        return replace(result, table=result.table.schema.empty_table()), result.table

    def _loaded(self) -> Extractor:
        if self._extractor is None:
            self._extractor = Extractor(
                reader=self._reader,
                backbone=self._backbone if self._reader.kind == "images" else None,
                settings=self._settings,
                seed=self._seed,
                storage=Storage.open(self._storage),
                feature_width=self._feature_width,
                device=self._device,
            )
        return self._extractor


def data_shard_class() -> Any:
    """The Ray actor class; Ray is imported only here."""
    import ray

    return ray.remote(max_restarts=-1, max_task_retries=-1)(DataShardImpl)
