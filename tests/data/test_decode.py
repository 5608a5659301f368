import io
import struct
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from paucal.data.decode import (
    Orientation,
    UnreadableImage,
    check_decodes,
    decode_reduced,
    decode_rgb,
    read_orientation,
    upright_rgb,
)
from paucal.types import UserError


def _encode(image: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def _array(source: bytes) -> np.ndarray:
    return np.asarray(decode_rgb(source, "x"))


def test_decode_rgb__scales_16_bit_grey_instead_of_clipping():
    pixels = np.asarray([[0, 257, 32768, 65535]], dtype=np.uint16)
    decoded = _array(_encode(Image.fromarray(pixels)))
    assert decoded[0, :, 0].tolist() == [0, 1, 128, 255]
    assert decoded.shape == (1, 4, 3)


def test_decode_rgb__scales_16_bit_tiff():
    pixels = np.asarray([[0, 65535]], dtype=np.uint16)
    assert _array(_encode(Image.fromarray(pixels), "TIFF"))[0, :, 1].tolist() == [0, 255]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_decode_rgb__drops_alpha(mode):
    image = Image.new("RGB", (2, 2), (90, 90, 90)).convert(mode)
    image.putalpha(0)
    assert (_array(_encode(image)) == 90).all()


def test_decode_rgb__looks_up_palettes_quietly():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([0, 1])
    decoded = _array(_encode(image, transparency=b"\x00\xff"))
    assert decoded.tolist() == [[[10, 20, 30], [200, 100, 50]]]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_decode_rgb__applies_every_exif_orientation(form, orientation):
    upright = Image.new("RGB", (24, 16), "black")
    upright.paste("white", (0, 0, 12, 8))  # only the upper left quarter
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the transposition that stores it turned
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    source = _encode(stored, form, exif=exif)
    decoded = _array(source)
    assert decoded.shape == (16, 24, 3)
    corners = [int(decoded[y, x, 0]) > 128 for y, x in ((2, 2), (2, 21), (13, 2), (13, 21))]
    assert corners == [True, False, False, False]
    found = read_orientation(source, "x")
    assert found.upright_size == (16, 24)
    assert found.stored_size == stored.size[::-1]
    assert found.value == orientation
    assert found.is_ambiguous == (orientation in (2, 3, 4))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("value", [65537, 65542, 0, 9, 255, "6", "upright", b"\x06"])
def test_invalid_orientations__are_ignored(form, value):
    upright = Image.new("RGB", (24, 16), "black")
    upright.paste("white", (0, 0, 12, 8))
    source = _encode(upright, form, **({"tiffinfo": _tags(value)} if form == "TIFF" else {"exif": _exif_of(value)}))
    decoded = _array(source)
    assert decoded.shape == (16, 24, 3)
    assert (decoded[2, 2, 0] > 128, decoded[13, 21, 0] < 128) == (True, True)
    assert read_orientation(source, "x") == Orientation(1, (16, 24), (16, 24))
    assert decode_reduced(source, "x", 64)[2] == (16, 24)


def _tags(value) -> ImageFileDirectory_v2:
    tags = ImageFileDirectory_v2()
    tags.tagtype[0x0112] = {int: 4, str: 2, bytes: 7}[type(value)]
    tags[0x0112] = value
    return tags


def _exif_of(value) -> bytes:
    """Return EXIF of one directory with one entry, whose type follows the value's."""
    if isinstance(value, int):
        kind, count, data = 4, 1, struct.pack("<I", value)  # LONG, as the set with 65537 has it
    else:
        kind, text = (2, value.encode() + b"\0") if isinstance(value, str) else (7, value)
        count, data = len(text), text[:4].ljust(4, b"\0")  # of a longer text the bytes of an offset, past the end
    entry = struct.pack("<HHI", 0x0112, kind, count) + data
    return b"Exif\0\0II*\0\x08\0\0\0\x01\0" + entry + b"\0\0\0\0"


def test_square_images__are_ambiguous_where_they_are_turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    square, longer = (read_orientation(_encode(Image.new("RGB", size), exif=exif), "x") for size in ((8, 8), (8, 6)))
    assert square == Orientation(6, (8, 8), (8, 8))
    assert longer == Orientation(6, (6, 8), (8, 6))
    assert (square.is_ambiguous, longer.is_ambiguous) == (True, False)
    assert not read_orientation(_encode(Image.new("RGB", (8, 8))), "x").is_ambiguous


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "PPM"])
def test_decode_rgb__reads_common_formats(form):
    assert (
        np.abs(_array(_encode(Image.new("RGB", (3, 2), (200, 10, 90)), form)).astype(int)[0, 0] - [200, 10, 90]).max()
        <= 4
    )


@pytest.mark.parametrize("read", [decode_rgb, read_orientation, check_decodes])
def test_decode__names_what_is_not_an_image(read):
    with pytest.raises(UnreadableImage, match=r"image cats/1\.jpg cannot be decoded.*not in a supported format"):
        read(b"not an image", "cats/1.jpg")


@pytest.mark.parametrize("read", [decode_rgb, check_decodes])
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_decode__refuses_truncated_files(read, form):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    source = _encode(noise, form)
    with pytest.raises(UserError, match="image x cannot be decoded"):
        read(source[: len(source) // 2], "x")


def test_decode__names_a_missing_file(tmp_path: Path):
    with pytest.raises(UnreadableImage, match=r"image gone\.png cannot be decoded.*No such file"):
        decode_rgb(tmp_path / "gone.png", "gone.png")


def test_decode__refuses_floats():
    with pytest.raises(UnreadableImage, match="floats of unknown range"):
        decode_rgb(_encode(Image.new("F", (2, 2), 0.5), "TIFF"), "x")


def test_decode__refuses_integers_beyond_16_bits():
    with pytest.raises(UnreadableImage, match="beyond 16 bits"):
        decode_rgb(_encode(Image.new("I", (2, 2), 70000), "TIFF"), "x")


def test_decode__turns_the_bomb_limit_into_a_user_error(monkeypatch):
    source = _encode(Image.new("RGB", (20, 20)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UnreadableImage, match="more than 200 pixels, the limit against decompression bombs"):
        decode_rgb(source, "x")


def test_decode__keeps_pillow_warnings_in(monkeypatch):
    source = _encode(Image.new("RGB", (15, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # 150 pixels: Pillow warns from the limit to twice it
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert decode_rgb(source, "x").size == (15, 10)
    assert caught == []


def test_decode__leaves_warning_filters_as_they_were_with_threads():
    source, before = _encode(Image.new("RGB", (8, 8))), list(warnings.filters)
    threads = [threading.Thread(target=lambda: [_array(source) for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before


@pytest.mark.parametrize("read", [decode_rgb, read_orientation, check_decodes])
def test_decode__leaves_rare_formats_alone(read):
    assert decode_rgb(_encode(Image.new("RGB", (16, 16)), "JPEG2000"), "x").size == (16, 16)
    for source in (_encode(Image.new("RGB", (16, 16)), "ICO"), b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"):
        with pytest.raises(UnreadableImage, match="not in a supported format"):
            read(source, "x")


@pytest.mark.parametrize("read", [decode_rgb, read_orientation, check_decodes])
def test_decode__refuses_what_no_square_can_cover(read):
    read(_encode(Image.new("RGB", (1, 100))), "x")
    with pytest.raises(UnreadableImage, match="2 x 65000 pixels are more than 100 times as long as wide"):
        read(_encode(Image.new("RGB", (2, 65000))), "x")


def test_upright_rgb__turns_an_image_once():
    exif = Image.Exif()
    exif[0x0112] = 6
    once = decode_rgb(_encode(Image.new("RGB", (24, 16)), "JPEG", exif=exif), "x")
    assert once.size == upright_rgb(once).size == (16, 24)
