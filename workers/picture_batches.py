"""The pictures of a part as uint8 batches: read, decoded and brought into one view.

With threads, up to three batches are decoded while the backbone works on the ones before; without, everything happens
in turn.  Both give the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from workers.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from workers.modeling.views import Transform
    from workers.samples import SampleReader
    from workers.storage.features import FeaturePart, FeatureSettings

READ_BYTES = 256 * 1024 * 1024
"""About how many encoded bytes of a part are held in memory at once."""

_AHEAD = 3


class PictureBatches:
    """Turns samples into batches.  One caller at a time: without threads, batches share a buffer."""

    def __init__(
        self,
        reader: SampleReader,
        transform: Transform,
        settings: FeatureSettings,
        *,
        seed: int,
        threads: int = 0,
    ) -> None:
        self._reader = reader
        self._transform = transform
        self._settings = settings
        self._seed = seed
        self._pool = ThreadPoolExecutor(threads, "decode") if threads else None
        self._buffer: NDArray[np.uint8] | None = None

    def of(
        self, samples: pa.Table, view: int, skipped: dict[int, str]
    ) -> Iterator[NDArray[np.uint8]]:
        """Batches [<= batch_size, h, w, 3] of the readable pictures, in the samples' order.

        A batch is valid until the next one is asked for.  Rows of unreadable pictures go into ``skipped``
        with a sentence each.

        Raises:
            DataError: more pictures are unreadable than the settings tolerate.
        """
        rows = PictureRows(samples)
        batches = self._ahead if self._pool is not None else self._in_turn
        yield from batches(rows, samples, view, skipped)

    def _reads(self, samples: pa.Table) -> Iterator[tuple[int, list[Any]]]:
        """(row of the first picture, encoded pictures) batch by batch, read in runs that fit into memory."""
        batch = self._settings.batch_size
        run_size, start = batch, 0
        while start < len(samples):
            run = list(self._reader.read(samples.slice(start, run_size)))
            for offset in range(0, len(run), batch):
                yield start + offset, run[offset : offset + batch]
            start += len(run)
            total = sum(len(one) if isinstance(one, (bytes, memoryview)) else 0 for one in run)
            mean = max(1, total // max(1, len(run)))
            run_size = batch * max(1, READ_BYTES // (mean * batch))

    def _in_turn(
        self, rows: PictureRows, samples: pa.Table, view: int, skipped: dict[int, str]
    ) -> Iterator[NDArray[np.uint8]]:
        if self._buffer is None:
            self._buffer = self._new_buffer(self._settings.batch_size)
        for first, encoded in self._reads(samples):
            filled = 0
            for row, one in enumerate(encoded, first):
                try:
                    self._picture(one, rows, row, view, self._buffer[filled])
                except DataError as error:
                    self._skip(row, error, skipped)
                else:
                    filled += 1
            if filled:
                yield self._buffer[:filled]

    def _ahead(
        self, rows: PictureRows, samples: pa.Table, view: int, skipped: dict[int, str]
    ) -> Iterator[NDArray[np.uint8]]:
        assert self._pool is not None
        pending: list[tuple[int, NDArray[np.uint8], list[Future[None]]]] = []
        try:
            for first, encoded in self._reads(samples):
                buffer = self._new_buffer(len(encoded))
                jobs = [
                    self._pool.submit(self._picture, one, rows, first + i, view, buffer[i])
                    for i, one in enumerate(encoded)
                ]
                pending.append((first, buffer, jobs))
                if len(pending) == _AHEAD:
                    yield from self._finished(*pending.pop(0), skipped)
            while pending:
                yield from self._finished(*pending.pop(0), skipped)
        finally:
            for _, _, jobs in pending:
                for job in jobs:
                    job.cancel()

    def _finished(
        self,
        first: int,
        buffer: NDArray[np.uint8],
        jobs: list[Future[None]],
        skipped: dict[int, str],
    ) -> Iterator[NDArray[np.uint8]]:
        good = []
        for i, job in enumerate(jobs):
            try:
                job.result()
            except DataError as error:
                self._skip(first + i, error, skipped)
            else:
                good.append(i)
        if good:
            yield buffer if len(good) == len(jobs) else buffer[good]

    def _picture(
        self, data: Any, rows: PictureRows, row: int, view: int, target: NDArray[np.uint8]
    ) -> None:
        from workers.modeling.images import decode
        from workers.modeling.views import view_generator, write_pixels

        image = decode(data, rows.name(row), max_pixels=self._settings.max_pixels)
        if view == 0:
            image = self._transform.test(image)
        else:
            rng = view_generator(self._seed, rows.content[row], view)
            image = self._transform.train(image, rng)
        write_pixels(image, target)

    def _skip(self, row: int, error: DataError, skipped: dict[int, str]) -> None:
        skipped[row] = str(error)
        limit = self._settings.tolerate_unreadable
        if len(skipped) <= limit:
            return
        if limit == 0:
            raise error
        raise DataError(
            f"{error} (and {limit} more before it: features.tolerate_unreadable={limit} is used up)"
        ) from error

    def _new_buffer(self, size: int) -> NDArray[np.uint8]:
        return np.empty((size, self._transform.height, self._transform.width, 3), dtype=np.uint8)


class PictureRows:
    """The columns of a sample table that pictures need, as Python values."""

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


def left_out(samples: pa.Table, part: FeaturePart) -> tuple[str, ...]:
    """One sentence for each sample that a cached part lacks."""
    if len(samples) == len(part):
        return ()
    there = set(part.ids.to_pylist())
    rows = PictureRows(samples)
    return tuple(
        f"image '{rows.name(row)}' was unreadable when its part was computed"
        for row, sample in enumerate(samples.column("id").to_pylist())
        if sample not in there
    )
