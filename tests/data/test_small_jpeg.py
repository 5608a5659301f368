"""Small JPEG images without Pillow: the same pixels, also of damaged files, and Pillow for all that is unusual."""

import io
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paucal.data import decode
from paucal.data.decode import DecodeOptions, UnreadableImage, _agrees_with_pillow, decode_rgb, decode_small

simplejpeg = pytest.importorskip("simplejpeg")
NOISE = Image.fromarray(np.random.default_rng(3).integers(0, 256, (60, 90, 3), dtype=np.uint8))


def encoded(size=(32, 24), mode="RGB", **options) -> bytes:
    file = io.BytesIO()
    NOISE.resize(size).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def by_pillow(content: bytes, monkeypatch) -> np.ndarray | None:
    with monkeypatch.context() as patch:
        patch.setattr(decode, "decode_small", lambda content: None)
        try:
            return np.asarray(decode_rgb(content, "x"))
        except UnreadableImage:
            return None


@pytest.fixture(autouse=True)
def same_library():
    _agrees_with_pillow.cache_clear()
    if not _agrees_with_pillow():
        pytest.skip("Pillow and simplejpeg were built with libraries that round in different ways")


OPTIONS: list[dict[str, Any]] = [
    {},
    {"subsampling": 0},
    {"quality": 5},
    {"progressive": True},
    {"restart_marker_blocks": 2},
]


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [(32, 24), (128, 128), (3, 3), (101, 47)])
@pytest.mark.parametrize("options", OPTIONS)
def test_pixels__are_those_of_pillow(mode, size, options, monkeypatch):
    content = encoded(size, mode, **options)
    small = decode_small(content)
    assert small is not None
    assert (small.mode, small.size) == ("RGB", size)
    expected = by_pillow(content, monkeypatch)
    assert expected is not None
    assert np.array_equal(np.asarray(small), expected)


def test_damaged_images__are_decoded_and_refused_as_by_pillow(monkeypatch):
    draw, decoded = random.Random(5), 0
    for number in range(600):
        content = bytearray(encoded(**OPTIONS[number % len(OPTIONS)]))
        for _ in range(draw.randrange(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        content = bytes(content[: draw.randrange(2, 2 * len(content))])
        small, expected = decode_small(content), by_pillow(content, monkeypatch)
        if small is not None:
            decoded += 1
            assert np.asarray(small).tolist() == (None if expected is None else expected.tolist())
    assert 10 < decoded < 590


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(exif=exif)


XMP = b'<rdf:Description tiff:Orientation="6"/>'  # read by Pillow where the EXIF data has no orientation


@pytest.mark.parametrize(
    "content",
    [
        encoded(mode="CMYK"),
        turned(),
        encoded(xmp=XMP),
        encoded((1, 101)),
        encoded((101, 1)),
        encoded((129, 128)),
        b"\xff\xd8\xff",
        b"",
    ],
    ids=["CMYK", "turned", "turned by XMP", "high", "wide", "large", "empty", "nothing"],
)
def test_other_images__are_left_to_pillow(content):
    assert decode_small(content) is None


def test_decode_rgb__reduces_and_turns_as_before(monkeypatch):
    assert decode_rgb(turned(), "x").size == decode_rgb(encoded(xmp=XMP), "x").size == (24, 32)
    content, reading = encoded((96, 64)), DecodeOptions(side=16)
    assert decode_rgb(content, "x", reading).size == (24, 16)
    with monkeypatch.context() as patch:
        patch.setattr(decode, "decode_small", lambda content: None)
        expected = decode_rgb(content, "x", reading)
    assert decode_rgb(content, "x", reading).tobytes() == expected.tobytes()


def test_decode_rgb__uses_it(monkeypatch):
    content = encoded()
    monkeypatch.setattr(Image, "open", None)
    assert np.array_equal(np.asarray(decode_rgb(content, "x")), simplejpeg.decode_jpeg(content))


def test_other_pixels__than_pillow_s_are_not_used(monkeypatch):
    decode_jpeg = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda content: decode_jpeg(content) ^ 1)
    _agrees_with_pillow.cache_clear()
    assert decode_small(encoded()) is None
    _agrees_with_pillow.cache_clear()
