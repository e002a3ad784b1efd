"""Which pictures cannot be decoded is known before anything is learned."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tests.workers.test_extraction import Pictures, Ready, png, table
from workers.images_check import unreadable_images


def test_each_unreadable_picture_is_named_in_order() -> None:
    data = [png(i) for i in range(70)]
    data[3], data[66] = b"no picture", b""
    found = unreadable_images(Pictures(data), table(data), max_pixels=10**6)
    assert [sentence.partition(" is ")[0] for sentence in found] == [
        "image 'sample-03 (row 3 of folder/pictures.parquet)'",
        "image 'sample-66 (row 66 of folder/pictures.parquet)'",
    ]


def test_a_file_that_is_one_picture_is_named_alone() -> None:
    samples = table([b""])
    samples = samples.set_column(3, "row", pa.array([-1], pa.int64()))
    (found,) = unreadable_images(Pictures([b"x"]), samples, max_pixels=10**6)
    assert found.startswith("image 'folder/pictures.parquet' is not in a known image format")


def test_pictures_are_held_a_few_at_a_time() -> None:
    data = [png(0)] * 130
    reader = Pictures(data)
    assert unreadable_images(reader, table(data), max_pixels=10**6) == ()
    assert reader.reads == [64, 64, 2]


def test_ready_features_are_no_pictures() -> None:
    reader = Ready(np.zeros((1, 4), dtype=np.float32))
    assert unreadable_images(reader, table([b""]), max_pixels=10**6) == ()
