"""Can every image be decoded?  Asked before anything is learned, so that a bad file leaves the bank as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.errors import DataError

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
        ids, locations = run["id"].to_pylist(), run["location"].to_pylist()
        rows = run["row"].to_pylist()
        for position, data in enumerate(reader.read(run)):
            name = (
                locations[position]
                if rows[position] < 0
                else f"{ids[position]} (row {rows[position]} of {locations[position]})"
            )
            try:
                decode(data, name, max_pixels=max_pixels)
            except DataError as error:
                problems.append(str(error))
    return tuple(problems)
