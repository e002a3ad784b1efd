"""The bundled demo: 3,000 Fashion-MNIST images and scikit-learn's handwritten digits, 20 classes, no network.

Fashion-MNIST (Xiao, Rasul, Vollgraf 2017; MIT, copyright Zalando SE) lies beside this file as Parquet: 200 training
and 100 test images a class.  The digits (BSD) are 1,797 images of 8x8; every third one is a test image.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.sources.base import Source
from pipelines.sources.files import content_digest
from pipelines.sources.table import Listing, make_listing
from workers.errors import DataError
from workers.settings import Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

FASHION = "demo:fashion_mnist_3k.parquet"
DIGITS = "demo:digits"


class DemoSettings(Settings):
    """The bundled images; nothing to set."""

    kind: Literal["demo"]


@dataclass(frozen=True)
class DemoReader:
    """Reads the bundled images from the installed package, wherever a shard runs."""

    kind: Literal["images"] = "images"

    def read(self, samples: pa.Table) -> list[bytes | Image]:
        """PNG bytes for Fashion-MNIST, greyscale PIL images for digits."""
        images: list[bytes | Image] = []
        for location, row in zip(
            samples["location"].to_pylist(), samples["row"].to_pylist(), strict=True
        ):
            if location == FASHION:
                images.append(_fashion()["image"][row]["bytes"].as_py())
            elif location == DIGITS:
                images.append(_digit_image(row))
            else:
                raise DataError(f"{location!r} is no part of the demo")
        return images


class DemoSource(Source):
    """20 classes: ten garments and ten digits."""

    settings: DemoSettings

    def reader(self) -> DemoReader:
        return DemoReader()

    def _list(self) -> Listing:
        fashion = _fashion()
        pixels, targets = _digits()
        count = len(targets)
        return make_listing(
            where="the demo's images",
            ids=[*fashion["id"].to_pylist(), *(f"digits/{at:05d}" for at in range(count))],
            labels=[*fashion["label"].to_pylist(), *(f"digit {target}" for target in targets)],
            domains=[""] * (fashion.num_rows + count),
            splits=[
                *fashion["split"].to_pylist(),
                *("test" if at % 3 == 2 else "train" for at in range(count)),
            ],
            contents=[
                *(content_digest(image["bytes"].as_buffer()) for image in fashion["image"]),
                *(content_digest(image) for image in pixels),
            ],
            locations=[FASHION] * fashion.num_rows + [DIGITS] * count,
            rows=[*range(fashion.num_rows), *range(count)],
        )


@lru_cache(maxsize=1)
def _fashion() -> pa.Table:
    asset = files("pipelines.sources").joinpath("assets/fashion_mnist_3k.parquet")
    return pq.read_table(pa.BufferReader(asset.read_bytes())).combine_chunks()


@lru_cache(maxsize=1)
def _digits() -> tuple[NDArray[np.uint8], list[int]]:
    """Pixels uint8 [1797, 8, 8], 0 to 255 (stored as 0 to 16), and the digit of each image."""
    table = _digits_table()
    pixels = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return pixels, table[:, -1].astype(int).tolist()


def _digits_table() -> NDArray[np.float64]:
    """The rows of scikit-learn's ``digits.csv.gz``: 64 pixels and the digit.

    Read from the installed package's data, since importing scikit-learn takes longer than the demo's images
    take to decode; where the file has moved, scikit-learn itself is asked.
    """
    package = find_spec("sklearn")
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                return np.loadtxt(lines, delimiter=",")
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.column_stack([digits.data, digits.target])


def _digit_image(row: int) -> Image:
    from PIL.Image import fromarray

    return fromarray(_digits()[0][row])
