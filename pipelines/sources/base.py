"""What every source is: settings, a listing and a reader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from pipelines.sources.splits import SplitPlan
from workers.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from pipelines.sources.table import Listing
    from workers.samples import SampleReader


def _given(path: Any) -> Any:
    if path is None or path in ("", []):
        raise ValueError("no path given; say where the data are: -o stream.source.path=PATH")
    return path


DataPath = Annotated[str, BeforeValidator(_given)]
"""A local path or any pyarrow file system URI; null and "" are refused with the option that sets it."""

DataPaths = Annotated[str | list[str], BeforeValidator(_given)]
"""One path or several."""


class SplitSettings(Settings):
    """Settings of a source whose data may come without test samples."""

    test_fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="fraction of every class kept for test when the data name no test samples "
        "(0.2 when left out)",
    )
    split_seed: int = Field(default=0, description="seed of that choice; not the experiment's seed")

    @property
    def split_plan(self) -> SplitPlan:
        """The two as one value."""
        return SplitPlan(test_fraction=self.test_fraction, seed=self.split_seed)


class Source(ABC):
    """Where samples come from.  Listing happens once, on first use; nothing is read before."""

    def __init__(self, settings: Any, *, cache_dir: str | None = None) -> None:
        self.settings = settings
        self._cache_dir = cache_dir
        self._listing: Listing | None = None

    @abstractmethod
    def _list(self) -> Listing: ...

    @abstractmethod
    def reader(self) -> SampleReader:
        """What reads this source's samples on a data shard."""

    def listing(self) -> Listing:
        """Samples, classes and warnings.

        Raises:
            DataError: the data are not what they must be; the message names file, row or class.
            SettingsError: the settings contradict the data.
        """
        if self._listing is None:
            self._listing = self._list()
        return self._listing

    def samples(self) -> pa.Table:
        """The listing's table, of ``SAMPLE_SCHEMA``."""
        return self.listing().samples

    @property
    def feature_width(self) -> int | None:
        """d of ready features, None for images."""
        return self.listing().feature_width
