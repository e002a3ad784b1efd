"""Encoded bytes to an upright 8-bit RGB picture, or one sentence that names the file and its fault.

Everything a folder of real pictures holds is handled rather than refused: greyscale, palette, 16-bit, CMYK, alpha and
EXIF rotation.  Transparency is laid over white, which is what a viewer shows; ``convert("RGB")`` alone would
uncover whatever colour is stored under transparent pixels.
"""

from __future__ import annotations

import functools
import io
import struct
import zlib
from typing import TYPE_CHECKING

from workers.errors import DataError, first_line

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = (
    "JPEG",
    "PNG",
    "WEBP",
    "BMP",
    "GIF",
    "TIFF",
    "PPM",
    "JPEG2000",
    "AVIF",
    "ICO",
)
"""Formats that are opened.  Those that run another program (EPS) or cannot be recognised are left out."""

MAX_PIXELS = 89_478_485
"""Pillow's own threshold for a suspicious picture: a quarter of a gigabyte as RGB."""

# What Pillow's decoders raise on damaged input, found by fuzzing; nothing else is caught.
_DAMAGE = (
    OSError,
    RuntimeError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
)
_EXIF_HOLDERS = frozenset({"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"})
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")


def decode(data: bytes | Image, name: str, *, max_pixels: int = MAX_PIXELS) -> Image:
    """An upright RGB picture from encoded bytes (or from a picture that is already open).

    Args:
        data: the bytes of an image file, or a PIL image.
        name: path or id of the sample, for messages.
        max_pixels: pictures with more pixels are refused before they are decompressed.

    Raises:
        DataError: empty, not an image, truncated or damaged, or larger than ``max_pixels``.
    """
    from PIL import Image as PILImage
    from PIL import UnidentifiedImageError

    if not isinstance(data, PILImage.Image) and not len(data):
        raise DataError(f"image '{name}' is empty (0 bytes): remove it or put the picture back")
    try:
        image = (
            data
            if isinstance(data, PILImage.Image)
            else PILImage.open(io.BytesIO(data), formats=_formats())
        )
        if image.width * image.height > max_pixels:
            raise DataError(_too_large(name, f"{image.width} x {image.height} pixels", max_pixels))
        image.load()
        return to_rgb(image)
    except UnidentifiedImageError:
        raise DataError(
            f"image '{name}' is not in a known image format (it begins with {_start(data)}): "
            "remove it or convert it to PNG or JPEG"
        ) from None
    except PILImage.DecompressionBombError:
        raise DataError(
            f"image '{name}' has more pixels than the {2 * MAX_PIXELS:,} above which Pillow takes a picture for a "
            "decompression bomb, whatever features.max_pixels says: make it smaller or remove it"
        ) from None
    except MemoryError:
        raise DataError(
            f"image '{name}' does not fit into memory when it is decompressed"
        ) from None
    except _DAMAGE as error:
        raise DataError(
            f"image '{name}' is truncated or damaged ({first_line(error)}): remove it or replace it"
        ) from error


@functools.cache
def _formats() -> list[str]:
    """Those of :data:`FORMATS` that this Pillow was built with."""
    from PIL import Image as PILImage

    PILImage.init()
    return [name for name in FORMATS if name in PILImage.OPEN]


def to_rgb(image: Image) -> Image:
    """The picture turned upright as its EXIF data says, as 8-bit RGB, transparency laid over white.

    16-bit greyscale keeps its high byte; other integer and floating-point pictures are taken as 0..65535 and
    0..1 when their range says so, and as 0..255 otherwise.
    """
    if image.format == "TIFF" or not _EXIF_HOLDERS.isdisjoint(image.info):
        image = _upright(image)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "L" and "transparency" not in image.info:
        return image.convert("RGB")
    if image.mode in _SIXTEEN_BIT or image.mode in ("I", "F"):
        return _eight_bit(image).convert("RGB")
    if image.has_transparency_data:
        return _over_white(image)
    return image.convert("RGB")


def _upright(image: Image) -> Image:
    from PIL import ExifTags, ImageOps

    if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
        return image
    return ImageOps.exif_transpose(image)


def _eight_bit(image: Image) -> Image:
    import numpy as np
    from PIL import Image as PILImage

    pixels = np.asarray(image)
    if image.mode in _SIXTEEN_BIT:
        return PILImage.fromarray((pixels >> 8).astype(np.uint8))
    pixels = np.nan_to_num(pixels.astype(np.float64))
    if image.mode == "I":
        scaled = pixels / 257.0 if pixels.max(initial=0) > 255 else pixels
    else:
        scaled = pixels * 255.0 if pixels.max(initial=0) <= 1.0 else pixels
    return PILImage.fromarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8))


def _over_white(image: Image) -> Image:
    from PIL import Image as PILImage

    layer = image.convert("RGBA")
    canvas = PILImage.new("RGBA", layer.size, (255, 255, 255, 255))
    canvas.alpha_composite(layer)
    return canvas.convert("RGB")


def _too_large(name: str, found: str, limit: int) -> str:
    return (
        f"image '{name}' has {found}, and features.max_pixels allows {limit}: "
        "make it smaller, or raise features.max_pixels if it is to be trusted"
    )


def _start(data: bytes | Image) -> str:
    return repr(bytes(data[:12])) if isinstance(data, (bytes, bytearray, memoryview)) else "nothing"
