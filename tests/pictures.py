"""Folders of tiny pictures as people have them: of every kind that is handled, and with every fault that is refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

STRANGE = ("Ünïcødé 猫 😀", "%2F..%2F..%2Fetc", "a\\b <b>&", "-rf")
"""Class names that must stay names: other scripts, ways up a tree, markup, an option."""


def _pixels(brightness: int, number: int, *shape: int) -> np.ndarray:
    rng = np.random.default_rng([brightness, number])
    return rng.integers(brightness, brightness + 60, shape, dtype=np.uint8)


def plain(folder: Path, brightness: int, count: int) -> None:
    """So many RGB pictures of a class, different from each other."""
    folder.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(_pixels(brightness, number, 20, 20, 3)).save(folder / f"{number}.png")


def every_kind(root: Path) -> dict[str, int]:
    """Pictures of every kind that is handled; classes, and how many pictures each of them has."""
    plain(root / "dark", 0, 6)
    plain(root / "light", 180, 6)
    plain(root / "single", 90, 1)
    for number, name in enumerate(STRANGE):
        plain(root / name, 30 + 40 * number, 3)
    dark = root / "dark"
    Image.fromarray(_pixels(0, 20, 20, 20, 3)).convert("CMYK").save(dark / "cmyk.jpg")
    Image.fromarray(_pixels(0, 21, 20, 20).astype(np.uint16) << 8).save(dark / "sixteen.png")
    Image.fromarray(_pixels(0, 22, 20, 20)).save(dark / "grey.png")
    Image.fromarray(_pixels(0, 23, 20, 20, 4)).save(dark / "alpha.png")
    Image.fromarray(_pixels(0, 24, 20, 20, 3)).convert("P").save(dark / "palette.gif")
    turned = Image.fromarray(_pixels(0, 25, 16, 30, 3))
    exif = turned.getexif()
    exif[274] = 6
    turned.save(dark / "turned.JPEG", exif=exif)
    (dark / "twin.png").write_bytes((dark / "0.png").read_bytes())
    (root / "light" / "twin of a dark one.png").write_bytes((dark / "1.png").read_bytes())
    plain(root / ".thumbnails", 0, 2)
    (root / "dark" / "notes.txt").write_text("not a picture, and not called one")
    return {"dark": 13, "light": 7, "single": 1, **dict.fromkeys(STRANGE, 3)}


def two_classes(root: Path) -> Path:
    """A sound folder of two classes that something can be done to."""
    for split, count in (("train", 6), ("test", 2)):
        plain(root / split / "dark", 0, count)
        plain(root / split / "light", 180, count)
    return root


def bomb(width: int = 30_000, height: int = 30_000) -> bytes:
    """A PNG of a few hundred bytes that claims to be nearly a gigapixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _truncated_jpeg(root: Path) -> str:
    file = root / "train" / "dark" / "cut.jpg"
    Image.fromarray(_pixels(0, 30, 64, 64, 3)).save(file)
    file.write_bytes(file.read_bytes()[:700])
    return f"image '{file}' is truncated or damaged"


def _bomb(root: Path) -> str:
    file = root / "test" / "dark" / "bomb.png"
    file.write_bytes(bomb())
    return f"image '{file}' has more pixels than"


def _zero_bytes(root: Path) -> str:
    file = root / "train" / "dark" / "empty.jpg"
    file.touch()
    return f"'{file}': empty file (0 bytes)"


def _text(root: Path) -> str:
    file = root / "train" / "light" / "text.jpg"
    file.write_text("not a picture at all")
    return f"image '{file}' is not in a known image format"


def _tested_only(root: Path) -> str:
    plain(root / "test" / "grey", 90, 2)
    return "class is in test only, with nothing to train on: 'grey'"


def _empty_class(root: Path) -> str:
    (root / "train" / "grey").mkdir()
    return "the class folder 'train/grey' holds no image"


def _loop(root: Path) -> str:
    (root / "train" / "dark" / "again").symlink_to(root)
    return "symbolic link loop"


def _nothing(root: Path) -> str:
    for file in sorted(root.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    return "no images found"


def _control_characters(root: Path) -> str:
    (root / "train" / "dark").rename(root / "train" / "da\nrk")
    (root / "test" / "dark").rename(root / "test" / "da\nrk")
    return "not a line of text without control characters"


FAULTS: dict[str, Callable[[Path], str]] = {
    "a truncated JPEG": _truncated_jpeg,
    "a decompression bomb": _bomb,
    "a file of zero bytes": _zero_bytes,
    "a text named .jpg": _text,
    "a class in test only": _tested_only,
    "an empty class folder": _empty_class,
    "a symbolic link loop": _loop,
    "an empty folder": _nothing,
    "a class name of two lines": _control_characters,
}
"""What can be done to :func:`two_classes`, each giving the words that tell of it."""
