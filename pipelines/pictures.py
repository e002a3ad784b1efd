"""Unlabelled images to backbone input, decoded a few batches ahead by threads: bounded memory, any number of images."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workers.errors import DataError
from workers.storage.faults import IN_DATA, remedy

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from pipelines.unlabelled import PictureBatch
    from workers.modeling.views import Transform

_AHEAD = 3
"""Batches that are being decoded or wait for the backbone at any time."""

Unreadable = Callable[[str], None]
"""Told in one sentence about an image that cannot be read; raises to stop, returns to go on without it."""


@dataclass(frozen=True)
class PictureDecoder:
    """Decodes images and puts them through a backbone's test transform.

    Attributes:
        transform: the backbone's.
        max_pixels: larger images are refused before they are decompressed.
    """

    transform: Transform
    max_pixels: int

    def pixels(self, images: Sequence[Any]) -> NDArray[np.uint8]:
        """PIL images, encoded bytes or paths as uint8 [n, h, w, 3].

        Raises:
            DataError: an image cannot be read; the message names it.
        """
        pixels = self._room(len(images))
        for position, image in enumerate(images):
            if isinstance(image, (str, os.PathLike)):
                name, data = os.fspath(image), _file_bytes(image)
            else:
                name, data = f"at position {position}", image
            self._write(data, name, pixels[position])
        return pixels

    def stream(
        self, batches: Iterable[PictureBatch], unreadable: Unreadable
    ) -> Iterator[tuple[list[str], NDArray[np.uint8]]]:
        """Ids and pixels of each batch in order, without the images that ``unreadable`` lets pass.

        Pillow works outside Python's lock, so threads help even beside a backbone on the same CPU.
        """
        waiting: deque[_Decoding] = deque()
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "decode") as pool:
            try:
                for batch in batches:
                    waiting.append(self._start(pool, batch))
                    if len(waiting) >= _AHEAD:
                        yield from waiting.popleft().finished(unreadable)
                while waiting:
                    yield from waiting.popleft().finished(unreadable)
            finally:
                for decoding in waiting:
                    for job in decoding.jobs:
                        job.cancel()

    def _start(self, pool: ThreadPoolExecutor, batch: PictureBatch) -> _Decoding:
        pixels = self._room(len(batch.ids))
        jobs = [
            pool.submit(self._read_and_write, read, name, pixels[at])
            for at, (read, name) in enumerate(zip(batch.reads, batch.ids, strict=True))
        ]
        return _Decoding(batch.ids, pixels, jobs)

    def _room(self, count: int) -> NDArray[np.uint8]:
        return np.empty((count, self.transform.height, self.transform.width, 3), dtype=np.uint8)

    def _read_and_write(
        self, read: Callable[[], bytes], name: str, target: NDArray[np.uint8]
    ) -> None:
        self._write(read(), name, target)

    def _write(self, data: bytes | Image, name: str, target: NDArray[np.uint8]) -> None:
        from workers.modeling.images import decode
        from workers.modeling.views import write_pixels

        image = decode(data, name, max_pixels=self.max_pixels)
        write_pixels(self.transform.test(image), target)


@dataclass(frozen=True)
class _Decoding:
    """A batch that is being decoded."""

    ids: list[str]
    pixels: NDArray[np.uint8]
    jobs: list[Future[None]]

    def finished(self, unreadable: Unreadable) -> Iterator[tuple[list[str], NDArray[np.uint8]]]:
        """Waits for the batch; yields what could be read of it, if anything."""
        good = []
        for at, job in enumerate(self.jobs):
            try:
                job.result()
            except DataError as error:
                unreadable(str(error))
            else:
                good.append(at)
        if len(good) == len(self.ids):
            yield self.ids, self.pixels
        elif good:
            yield [self.ids[at] for at in good], self.pixels[good]


def _file_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        advice = remedy(error, "read", IN_DATA)
        raise DataError(f"cannot read {os.fspath(path)!r}: {error.strerror}{advice}") from error
