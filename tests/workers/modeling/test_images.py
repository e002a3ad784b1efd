"""Decoding: every picture a folder may hold becomes upright 8-bit RGB, or one sentence names it."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from workers.errors import DataError
from workers.modeling.images import MAX_PIXELS, decode


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(width: int = 12, height: int = 8) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def pixels(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


def test_an_rgb_png_comes_back_as_it_is() -> None:
    assert np.array_equal(pixels(decode(encoded(picture()), "a.png")), np.asarray(picture()))


def test_a_greyscale_picture_has_three_equal_channels() -> None:
    grey = picture().convert("L")
    out = pixels(decode(encoded(grey), "a.png"))
    assert all(np.array_equal(out[..., c], np.asarray(grey)) for c in range(3))


def test_a_black_and_white_picture_is_zero_and_255() -> None:
    out = pixels(decode(encoded(picture().convert("1")), "a.png"))
    assert set(np.unique(out)) == {0, 255}


def test_a_palette_picture_shows_its_palette_colours() -> None:
    flat = Image.new("RGB", (4, 4), (200, 10, 30)).convert("P", palette=Image.Palette.ADAPTIVE)
    assert (pixels(decode(encoded(flat), "a.png")) == (200, 10, 30)).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_laid_over_white(mode: str) -> None:
    image = Image.new("RGBA", (2, 1), (10, 10, 10, 255))
    image.putpixel((1, 0), (10, 10, 10, 0))
    out = pixels(decode(encoded(image.convert(mode)), "a.png"))
    assert out[0, 0].tolist() == [10, 10, 10]
    assert out[0, 1].tolist() == [255, 255, 255]


def test_a_transparent_palette_entry_is_laid_over_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    out = pixels(decode(encoded(image, transparency=1), "a.png"))
    assert out[0].tolist() == [[10, 20, 30], [255, 255, 255]]


def test_a_transparent_colour_of_an_rgb_png_is_laid_over_white() -> None:
    image = Image.new("RGB", (1, 1), (1, 2, 3))
    out = pixels(decode(encoded(image, transparency=(1, 2, 3)), "a.png"))
    assert out[0, 0].tolist() == [255, 255, 255]


def test_sixteen_bits_keep_their_high_byte() -> None:
    values = np.array([[0, 255, 256, 0x1234, 65535]], dtype=np.uint16)
    out = pixels(decode(encoded(Image.fromarray(values)), "a.png"))
    assert out[0, :, 0].tolist() == [0, 0, 1, 0x12, 255]


def test_float_pictures_of_zero_to_one_use_the_whole_range() -> None:
    values = np.array([[0.0, 0.5, 1.0]], dtype=np.float32)
    out = pixels(decode(encoded(Image.fromarray(values), "TIFF"), "a.tif"))
    assert out[0, :, 0].tolist() == [0, 128, 255]


def test_a_cmyk_jpeg_looks_like_its_rgb_original() -> None:
    flat = Image.new("RGB", (16, 16), (200, 30, 60))
    out = pixels(decode(encoded(flat.convert("CMYK"), "JPEG", quality=95), "a.jpg"))
    assert np.abs(out.astype(int) - (200, 30, 60)).max() < 12


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_exif_rotation_is_applied(kind: str, orientation: int) -> None:
    upright = Image.new("RGB", (16, 8), (0, 0, 255))
    upright.paste((255, 0, 0), (0, 0, 8, 8))  # left half red
    turn = {
        3: Image.Transpose.ROTATE_180,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(upright.transpose(turn[orientation]), kind, exif=exif)
    out = decode(data, "a")
    assert out.size == (16, 8)
    assert out.getpixel((1, 4))[0] > 200 > 60 > out.getpixel((14, 4))[0]


def test_an_open_picture_passes_through() -> None:
    assert pixels(decode(picture().convert("L"), "digit 1")).shape == (8, 12, 3)


def test_an_empty_file_is_named() -> None:
    with pytest.raises(DataError, match=r"'cat/a.jpg' is empty \(0 bytes\)"):
        decode(b"", "cat/a.jpg")


def test_a_text_file_named_jpg_is_named_with_its_beginning() -> None:
    with pytest.raises(DataError, match=r"'cat/a.jpg' is not in a known image format .*hello"):
        decode(b"hello, this is text", "cat/a.jpg")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_a_truncated_file_is_named(kind: str) -> None:
    data = encoded(picture(64, 64), kind)
    with pytest.raises(DataError, match=r"'cat/b' is (truncated or damaged|not in a known)"):
        decode(data[: len(data) // 2], "cat/b")


def test_a_damaged_png_is_named() -> None:
    data = bytearray(encoded(picture(64, 64)))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(DataError, match=r"'b\.png' is truncated or damaged"):
        decode(bytes(data), "b.png")


def bomb(width: int, height: int) -> bytes:
    """A PNG header that promises width x height pixels and holds none."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_large_picture_is_refused_before_it_is_decompressed() -> None:
    with pytest.raises(DataError, match=r"10000 x 10000 pixels, and features.max_pixels allows"):
        decode(bomb(10_000, 10_000), "x.png")


@pytest.mark.parametrize("limit", [MAX_PIXELS, 10**12])
def test_a_decompression_bomb_is_refused_whatever_the_limit(limit: int) -> None:
    with pytest.raises(DataError, match=r"'x.png' has more pixels .* make it smaller or remove it"):
        decode(bomb(100_000, 100_000), "x.png", max_pixels=limit)


def test_the_pixel_limit_is_a_setting() -> None:
    with pytest.raises(DataError, match=r"12 x 8 pixels, and features\.max_pixels allows 95"):
        decode(encoded(picture()), "x.png", max_pixels=95)
    assert decode(encoded(picture()), "x.png", max_pixels=96).size == (12, 8)


def features_of_this_pillow() -> set[str]:
    """AVIF and WebP are optional parts of Pillow."""
    Image.init()
    return set(Image.SAVE)


SEEDS = [
    encoded(picture(20, 20), kind)
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "ICO", "JPEG2000", "AVIF")
    if kind in features_of_this_pillow()
]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8),
    st.integers(0, 10**6),
)
def test_damaged_bytes_give_a_picture_or_a_data_error(
    data: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    damaged = bytearray(data[: max(1, len(data) - cut % len(data))] if cut % 3 == 0 else data)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    # Anything but a DataError that names the image escapes and fails the test.
    with contextlib.suppress(DataError):
        assert decode(bytes(damaged), "x", max_pixels=10_000).mode == "RGB"
