"""Arrays and channels from files: what they hold, what is refused, and how much memory that takes."""

import io
import tracemalloc

import numpy as np
import pytest
from numpy.lib import format as npy
from PIL import Image

from paucal.data.channels.arrays import npy_shape, read_npy
from paucal.data.channels.decoding import (
    array_shape,
    check_image,
    convert_image,
    decode_for_display,
    decode_image,
    image_shape,
)
from paucal.data.channels.pixels import pixels_of
from paucal.data.decode import DecodeOptions, UnreadableImage

tifffile = pytest.importorskip("tifffile")
FIVE = (np.arange(8 * 12 * 5).reshape(8, 12, 5) * 7 % 251).astype(np.uint8)


def as_npy(values) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def as_tiff(values, **options) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, **{"photometric": "minisblack", **options})
    return buffer.getvalue()


SOURCES = {
    "npy, channels last": as_npy(FIVE),
    "npy, channels first": as_npy(np.ascontiguousarray(FIVE.transpose(2, 0, 1))),
    "npy, in Fortran's order": as_npy(np.asfortranarray(FIVE)),
    "tiff, samples": as_tiff(FIVE, planarconfig="contig"),
    "tiff, planes": as_tiff(np.ascontiguousarray(FIVE.transpose(2, 0, 1)), planarconfig="separate"),
    "tiff, pages": as_tiff(np.ascontiguousarray(FIVE.transpose(2, 0, 1))),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_channels__are_read_from_wherever_the_file_has_them(source):
    assert (pixels_of(decode_image(source, "x", DecodeOptions(channels=5))) == FIVE).all()
    check_image(source, "x", DecodeOptions(channels=5))


@pytest.mark.parametrize(("name", "known"), [("npy, channels first", True), ("tiff, samples", True)])
def test_shape__is_read_from_the_header(name, known):
    shape = array_shape(SOURCES[name], "x")
    assert shape is not None
    assert (shape.height, shape.width, shape.channels) == (8, 12, 5)
    assert image_shape(SOURCES[name], "x") == (8, 12)


def test_values__are_brought_to_8_bits_by_the_range_of_their_channel():
    values = np.stack([np.linspace(0, 4000, 24).reshape(4, 6), np.linspace(-1, 1, 24).reshape(4, 6)], 2)
    reading = DecodeOptions(channels=2, channel_ranges=((0, 4000), (-1, 1)))
    pixels = pixels_of(decode_image(as_npy(values), "x", reading))
    assert pixels[..., 0].tolist() == pixels[..., 1].tolist()
    assert (pixels[0, 0, 0], pixels[-1, -1, 0]) == (0, 255)
    with pytest.raises(UnreadableImage, match="floats of unknown range"):
        decode_image(as_npy(values), "x", DecodeOptions(channels=2))


def test_arrays_of_one_and_three_channels__are_rgb():
    grey = FIVE[..., 0]
    assert (np.asarray(decode_image(as_npy(grey), "x")) == grey[..., None]).all()
    assert (np.asarray(decode_image(as_npy(FIVE[..., :3]), "x")) == FIVE[..., :3]).all()
    assert (np.asarray(decode_image(as_npy(grey > 100), "x")) == np.where(grey > 100, 255, 0)[..., None]).all()


def test_opacity__is_a_channel_where_four_are_asked_for():
    buffer = io.BytesIO()
    Image.fromarray(FIVE[..., :4]).save(buffer, "PNG")
    assert (pixels_of(decode_image(buffer.getvalue(), "x", DecodeOptions(channels=4))) == FIVE[..., :4]).all()
    assert pixels_of(decode_image(buffer.getvalue(), "x", DecodeOptions(channels=1))).shape == (8, 12, 1)


def test_size__is_reduced_as_that_of_photographs():
    large = np.random.default_rng(0).integers(0, 255, (80, 60, 5), dtype=np.uint8)
    picture = decode_image(as_npy(large), "x", DecodeOptions(side=20, channels=5))
    assert picture.size == (20, 27)
    alone = Image.fromarray(large[..., 4]).resize((20, 27), Image.Resampling.HAMMING, reducing_gap=2.0)
    assert (pixels_of(picture)[..., 4] == np.asarray(alone)).all()


@pytest.mark.parametrize(
    ("source", "channels", "words"),
    [
        (SOURCES["npy, channels last"], 3, "the image has 5 channels, expected 3"),
        (SOURCES["tiff, samples"], 3, "the image has 5 channels, expected 3"),
        (SOURCES["tiff, samples"], 2, "the image has 5 channels, expected 2"),
        (as_npy(np.zeros((2, 3, 4, 5))), 3, "expected numbers with 2 axes"),
        (as_npy(np.zeros((4, 4), dtype="U3")), 3, "expected numbers with 2 axes"),
        (as_npy(np.zeros((0, 4))), 3, "expected numbers with 2 axes"),
        (as_npy(FIVE)[:-1], 5, "the array is truncated"),
        (as_npy(FIVE)[:20], 5, "reading array header"),
        (as_npy(np.zeros((4, 2000), dtype=np.uint8)), 3, "more than 100 times as long as wide"),
        (b"\x93NUMPY\x09\x00", 3, "format"),
    ],
)
def test_bad_array__is_named_in_one_sentence(source, channels, words):
    with pytest.raises(UnreadableImage, match=f"image x cannot be decoded: .*{words}"):
        decode_image(source, "x", DecodeOptions(channels=channels))


def test_objects__are_never_unpickled(tmp_path):
    path = tmp_path / "hostile.npy"
    np.save(path, np.array([{"a": 1}, print], dtype=object), allow_pickle=True)
    with pytest.raises(UnreadableImage, match="expected numbers"):
        decode_image(path, "hostile.npy", DecodeOptions(channels=5))


def header_of(shape, dtype="|u1") -> bytes:
    buffer = io.BytesIO()
    npy.write_array_header_1_0(buffer, {"shape": shape, "fortran_order": False, "descr": dtype})
    return buffer.getvalue()


def white_png(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["npy", "npy of channels", "png", "tiff", "tiff of channels"])
def test_bomb__is_refused_with_the_limit_before_memory_is_taken(form):
    """20,000 x 20,000 pixels in a small file; decoded they would be 400 MB to 1.2 GB."""
    side = 20_000
    if form == "npy":
        source = header_of((side, side))
    elif form == "npy of channels":
        source = header_of((6_000, 6_000, 500))
    elif form == "png":
        source = white_png(side)
    else:
        channels = () if form == "tiff" else (5,)
        source = tiff_header_of(side, channels)
    assert len(source) < 200_000
    tracemalloc.start()
    with pytest.raises(UnreadableImage, match="the limit against decompression bombs"):
        decode_image(source, "x", DecodeOptions(channels=500 if "npy of" in form else 5 if "tiff of" in form else 3))
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def tiff_header_of(side: int, channels: tuple[int, ...]) -> bytes:
    """Return a TIFF whose header claims a large image, with a single strip of data."""
    buffer = io.BytesIO()
    small = np.zeros((8, 8, *channels), dtype=np.uint8)
    tifffile.imwrite(buffer, small, photometric="minisblack", planarconfig="contig" if channels else None)
    data = bytearray(buffer.getvalue())
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        tags = file.pages[0].tags
        places = [(tags[name].valueoffset, tags[name].dtype) for name in ("ImageWidth", "ImageLength")]
    for offset, kind in places:
        width = 2 if kind == 3 else 4
        data[offset : offset + width] = side.to_bytes(width, "little")
    return bytes(data)


def test_npy__with_channels_that_are_told_apart_only_by_their_number():
    assert read_npy(as_npy(np.zeros((4, 9, 4))), channels=4).shape == (4, 9, 4)
    assert read_npy(as_npy(np.zeros((4, 4, 9))), channels=4).shape == (4, 9, 4)
    assert npy_shape(as_npy(np.zeros((4, 4, 9)))).axis == 0


def test_look__shows_an_array_with_what_it_is():
    values = FIVE.astype(np.uint16) * 16
    picture, mode, size = decode_for_display(as_npy(values), "x", 64)
    assert (picture.mode, mode, size) == ("RGB", "5 channels, uint16", (8, 12))
    assert np.asarray(picture).max() == 255


def test_picture_in_memory__may_be_an_array():
    reading = DecodeOptions(channels=5)
    assert (pixels_of(convert_image(FIVE, reading)) == FIVE).all()
    assert (pixels_of(convert_image(convert_image(FIVE, reading), reading)) == FIVE).all()
    for wrong in (FIVE[..., :2], Image.new("RGB", (4, 4)), convert_image(FIVE[..., :2], DecodeOptions(channels=2))):
        with pytest.raises(ValueError, match="expected 5"):
            convert_image(wrong, reading)
