"""Where samples come from.  A new source is one file with settings and a ``Source``, and one entry here."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from pipelines.sources.base import Source
from pipelines.sources.cifar import CifarSettings, CifarSource
from pipelines.sources.demo import DemoSettings, DemoSource
from pipelines.sources.features import FeaturesSettings, FeaturesSource
from pipelines.sources.image_folder import ImageFolderSettings, ImageFolderSource
from pipelines.sources.manifest import ManifestSettings, ManifestSource
from pipelines.sources.parquet import ParquetSettings, ParquetSource
from pipelines.sources.table import SAMPLE_SCHEMA, Listing

SOURCES: dict[str, type[Source]] = {
    "demo": DemoSource,
    "image_folder": ImageFolderSource,
    "manifest": ManifestSource,
    "parquet": ParquetSource,
    "features": FeaturesSource,
    "cifar": CifarSource,
}

SourceSettings = Annotated[
    DemoSettings
    | ImageFolderSettings
    | ManifestSettings
    | ParquetSettings
    | FeaturesSettings
    | CifarSettings,
    Field(discriminator="kind"),
]


def open_source(settings: Any, *, cache_dir: str | None = None) -> Source:
    """The source that settings describe.  Nothing is read before its listing is asked for.

    Args:
        settings: one of ``SourceSettings``.
        cache_dir: folder or URI where content digests are remembered between runs.
    """
    return SOURCES[settings.kind](settings, cache_dir=cache_dir)


__all__ = ["SAMPLE_SCHEMA", "SOURCES", "Listing", "Source", "SourceSettings", "open_source"]
