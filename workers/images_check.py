"""Can every image be decoded?  Asked before anything is learned, so that a bad file leaves the bank as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.errors import DataError
from workers.picture_batches import PictureRows

if TYPE_CHECKING:
    import pyarrow as pa

    from workers.samples import SampleReader

_RUN = 64
"""Images held in memory at a time."""


def unreadable_images(
    reader: SampleReader, samples: pa.Table, *, max_pixels: int
) -> tuple[str, ...]:
    """One sentence for each image that cannot be decoded, in the samples' order; none for ready features."""
    from workers.modeling.images import decode

    if reader.kind != "images":
        return ()
    problems: list[str] = []
    for start in range(0, len(samples), _RUN):
        run = samples.slice(start, _RUN)
        rows = PictureRows(run)
        for row, data in enumerate(reader.read(run)):
            try:
                decode(data, rows.name(row), max_pixels=max_pixels)
            except DataError as error:
                problems.append(str(error))
    return tuple(problems)
