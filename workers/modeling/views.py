"""The two ways a picture becomes backbone input: the test transform, and seeded random crops for training.

The test transform is timm's own for the backbone.  Its usual case (resize the shorter edge, crop the centre) is done
here with the same two Pillow calls, because timm's object pipeline costs as much as decoding a small picture; the
others are left to timm.  A training view's randomness comes from (seed, content of the sample, view number)
and nothing else, so a view is the same picture whoever computes it, in whatever order.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

TRAIN_SCALE = (0.05, 1.0)
TRAIN_RATIO = (3.0 / 4.0, 4.0 / 3.0)
TRAIN_INTERPOLATION = "bilinear"
"""What torchvision's RandomResizedCrop uses when nothing is said, as the released code does."""
TRAIN_FLIP = 0.5
_TRIES = 10


@dataclass(frozen=True)
class Transform:
    """How pictures become a backbone's input; its fields are timm's data config.

    ``mean`` and ``std`` are what the uint8 picture, scaled to [0, 1], is normalised with (0 and 1: not at all).
    """

    height: int
    width: int
    interpolation: str
    crop_pct: float
    crop_mode: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def describe(self) -> dict[str, Any]:
        """JSON-able; part of the backbone's fingerprint."""
        return {
            "input": [self.height, self.width],
            "test": {
                "interpolation": self.interpolation,
                "crop_pct": self.crop_pct,
                "crop_mode": self.crop_mode,
            },
            "train": {
                "scale": list(TRAIN_SCALE),
                "ratio": list(TRAIN_RATIO),
                "interpolation": TRAIN_INTERPOLATION,
                "flip": TRAIN_FLIP,
            },
            "mean": list(self.mean),
            "std": list(self.std),
        }

    # -- test view -------------------------------------------------------------------------------------------

    def test(self, image: Image) -> Image:
        """The evaluation view of an RGB picture: an RGB picture of ``width`` x ``height``."""
        if self._pipeline is not None:
            return self._pipeline(image)
        size = _short_edge_size(image.width, image.height, self._resize_to)
        if size != image.size:
            image = image.resize(size, self._resample)
        if size == (self.width, self.height):
            return image
        left = round((size[0] - self.width) / 2.0)
        top = round((size[1] - self.height) / 2.0)
        return image.crop((left, top, left + self.width, top + self.height))

    @cached_property
    def _resize_to(self) -> int:
        return math.floor(self.height / self.crop_pct)

    @cached_property
    def _resample(self) -> Any:
        return _resampling(self.interpolation)

    @cached_property
    def _pipeline(self) -> Callable[[Image], Image] | None:
        """timm's own steps up to the tensor, for what :meth:`test` does not do itself."""
        simple = self.crop_mode == "center" and self.height == self.width
        if simple and self._resize_to >= self.height:
            return None
        from workers.modeling.torchvision_compat import import_timm

        timm = import_timm()
        fields = asdict(self)
        size = (3, fields.pop("height"), fields.pop("width"))
        composed = timm.data.create_transform(size, **fields, normalize=False)
        composed.transforms.pop()  # the last one makes a tensor
        pipeline: Callable[[Image], Image] = composed
        return pipeline

    # -- training views --------------------------------------------------------------------------------------

    def train(self, image: Image, rng: random.Random) -> Image:
        """A random resized crop, perhaps mirrored: scale 0.05-1, ratio 3/4-4/3, flipped half of the time.

        The same distribution as torchvision's RandomResizedCrop and RandomHorizontalFlip; only ``rng.random()``
        is drawn from, whose sequence Python promises to keep.
        """
        from PIL import Image as PILImage

        left, top, width, height = _random_crop(image.width, image.height, rng)
        flip = rng.random() < TRAIN_FLIP
        view = image.crop((left, top, left + width, top + height))
        view = view.resize((self.width, self.height), _resampling(TRAIN_INTERPOLATION))
        return view.transpose(PILImage.Transpose.FLIP_LEFT_RIGHT) if flip else view


def view_generator(seed: int, content: str, view: int) -> random.Random:
    """The randomness of one view of one sample: a function of (seed, content digest, view number) alone."""
    key = f"luca view\0{seed}\0{content}\0{view}".encode()
    return random.Random(int.from_bytes(hashlib.blake2b(key, digest_size=32).digest(), "little"))


def write_pixels(image: Image, target: NDArray[np.uint8]) -> None:
    """Copies an RGB picture into one row of a batch, uint8 [h, w, 3]."""
    import numpy as np

    target[...] = np.frombuffer(image.tobytes(), np.uint8).reshape(target.shape)


def _short_edge_size(width: int, height: int, edge: int) -> tuple[int, int]:
    """(width, height) with the shorter edge at ``edge``; the longer one rounded down, as torchvision does."""
    if width <= height:
        return edge, int(edge * height / width)
    return int(edge * width / height), edge


def _random_crop(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    """(left, top, width, height) of a crop; the whole height or width at an extreme aspect ratio."""
    low, high = math.log(TRAIN_RATIO[0]), math.log(TRAIN_RATIO[1])
    for _ in range(_TRIES):
        share = TRAIN_SCALE[0] + (TRAIN_SCALE[1] - TRAIN_SCALE[0]) * rng.random()
        ratio = math.exp(low + (high - low) * rng.random())
        area = width * height * share
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(rng.random() * (height - h + 1))
            left = int(rng.random() * (width - w + 1))
            return left, top, w, h
    w, h = width, height
    if width / height < TRAIN_RATIO[0]:
        h = round(width / TRAIN_RATIO[0])
    elif width / height > TRAIN_RATIO[1]:
        w = round(height * TRAIN_RATIO[1])
    return (width - w) // 2, (height - h) // 2, w, h


def _resampling(name: str) -> Any:
    from PIL import Image as PILImage

    return PILImage.Resampling[name.upper()]
