from __future__ import annotations

import numpy as np
from PIL import Image

from tests.pipelines.sources.data import groups, source, travelled


def test_the_demo_has_ten_garments_and_ten_digits_without_any_warning() -> None:
    found = source(kind="demo").listing()
    assert len(found.classes) == 20
    assert found.classes[0] == "Ankle boot"
    assert found.classes[-1] == "digit 9"
    counts = groups(found)
    assert counts[("train", "", "Coat")] == 200
    assert counts[("test", "", "Coat")] == 100
    digits = {
        split: sum(n for (s, _, name), n in counts.items() if s == split and "digit" in name)
        for split in ("train", "test")
    }
    assert digits == {"train": 1198, "test": 599}
    assert found.warnings == ()


def test_garments_are_encoded_and_digits_are_grey_images_of_full_range() -> None:
    demo = source(kind="demo")
    samples = demo.samples()
    reader = travelled(demo.reader())
    first, last = reader.read(samples.take([0, samples.num_rows - 1]))
    assert isinstance(first, Image.Image)
    assert (first.mode, first.size) == ("L", (8, 8))
    assert np.asarray(first).max() > 200
    assert isinstance(last, bytes)
    assert last.startswith(b"\x89PNG")
