"""How a data shard reads samples, whatever they are and wherever they lie.

Each source of ``pipelines.sources`` brings a reader: a small picklable value that travels to the shards and turns
rows of the sample table into encoded images, ready images or feature rows.  Shards know this protocol only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from PIL.Image import Image


@runtime_checkable
class SampleReader(Protocol):
    """Reads the samples of a source; a frozen, picklable value without open files."""

    @property
    def kind(self) -> Literal["images", "features"]:
        """What ``read`` returns."""
        ...

    def read(self, samples: pa.Table) -> list[bytes | Image] | NDArray[np.floating]:
        """The samples' data, one entry a row of ``samples``, in the order of its rows.

        Args:
            samples: rows of the sample table; the columns ``location`` and ``row`` are used.

        Returns:
            kind "images": a list of encoded images (bytes) or ready PIL images.
            kind "features": an array [n, d] of float16 or float32, as the file stores it.

        Raises:
            DataError: a file has gone or is no longer what was listed; the message names it.
        """
        ...
