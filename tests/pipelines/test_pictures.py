"""Unlabelled images are decoded a few batches ahead, in order, and never all at once."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipelines.pictures import PictureDecoder
from pipelines.unlabelled import PictureBatch
from workers.errors import DataError
from workers.modeling.views import Transform

TRANSFORM = Transform(
    height=8,
    width=8,
    interpolation="bilinear",
    crop_pct=1.0,
    crop_mode="center",
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
)
DECODER = PictureDecoder(TRANSFORM, max_pixels=1000)


def grey(level: int, *, size: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (size, size), level).save(buffer, "PNG")
    return buffer.getvalue()


def counted(seen: list[str], names: list[str]) -> Iterator[PictureBatch]:
    """Batches of two; ``seen`` notes a batch's names when it is asked for."""

    def read(name: str) -> Callable[[], bytes]:
        return lambda: grey(int(name))

    for start in range(0, len(names), 2):
        chosen = names[start : start + 2]
        seen.extend(chosen)
        yield PictureBatch(chosen, [read(name) for name in chosen])


def test_batches_come_in_order_with_their_pixels() -> None:
    names = [str(level) for level in range(11)]
    found = list(DECODER.stream(counted([], names), pytest.fail))
    assert [name for ids, _ in found for name in ids] == names
    levels = np.concatenate([pixels[:, 0, 0, 0] for _, pixels in found])
    assert levels.tolist() == list(range(11))


def test_only_a_few_batches_are_held() -> None:
    seen: list[str] = []
    stream = DECODER.stream(counted(seen, [str(n % 200) for n in range(1000)]), pytest.fail)
    next(stream)
    assert len(seen) <= 6
    for _ in range(10):
        next(stream)
    assert len(seen) <= 26
    stream.close()


def test_unreadable_images_are_told_in_order_and_left_out() -> None:
    def bad() -> bytes:
        raise DataError("cannot read it")

    batch = PictureBatch(["1", "2", "3"], [lambda: grey(1), bad, lambda: b"junk"])
    told: list[str] = []
    ((ids, pixels),) = DECODER.stream([batch], told.append)
    assert ids == ["1"]
    assert pixels.shape == (1, 8, 8, 3)
    assert told[0] == "cannot read it"
    assert "image '3' is not in a known image format" in told[1]


def test_a_batch_without_any_readable_image_is_left_out() -> None:
    batch = PictureBatch(["1"], [lambda: b"junk"])
    assert list(DECODER.stream([batch], lambda _: None)) == []


def test_the_stream_ends_where_unreadable_raises() -> None:
    def stop(sentence: str) -> None:
        raise DataError(sentence)

    batch = PictureBatch(["1"], [lambda: b"junk"])
    with pytest.raises(DataError, match="image '1'"):
        list(DECODER.stream([batch], stop))


def test_images_beyond_the_limit_are_refused_before_they_are_decompressed() -> None:
    with pytest.raises(DataError, match="40 x 40 pixels"):
        DECODER.pixels([grey(1, size=40)])


def test_a_file_that_this_user_may_not_read_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def denied(self: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(DataError, match=r"cannot read 'a\.png': .*; this user may not read here"):
        DECODER.pixels(["a.png"])
