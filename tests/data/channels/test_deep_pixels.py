import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from paucal.data.channels.decoding import high_bit_channel_values
from paucal.data.channels.pixels import to_8_bits
from paucal.data.decode import DecodeOptions, UnreadableImage, check_decodes, decode_rgb


def png_16(values: np.ndarray) -> bytes:
    """Encode (H, W, C) uint16 values by hand: Pillow cannot write 16-bit colours."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = values.shape
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def encode(values: np.ndarray, form: str = "TIFF") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_decode__keeps_all_levels_of_a_12_bit_camera(form):
    values = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    decoded = np.asarray(decode_rgb(encode(values, form), "x", DecodeOptions(value_range=(0, 4095))))[..., 0]
    assert len(np.unique(decoded)) == 256
    assert np.array_equal(decoded, np.round(values * (255 / 4095)).astype(np.uint8))
    assert len(np.unique(np.asarray(decode_rgb(encode(values, form), "x")))) == 17  # without the set's range


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_decode__reads_all_16_bits_of_a_png(channels):
    values = np.random.default_rng(0).integers(0, 4096, (5, 7, channels), dtype=np.uint16)
    source = png_16(values)
    kept = values[..., : {1: 1, 2: 1, 3: 3, 4: 3}[channels]]  # without opacity
    found = high_bit_channel_values(source, "x")
    assert found is not None
    assert np.array_equal(found.reshape(kept.shape), kept)
    decoded = np.asarray(decode_rgb(source, "x", DecodeOptions(value_range=(0, 4095))))
    assert np.array_equal(decoded, np.broadcast_to(np.round(kept * (255 / 4095)).astype(np.uint8), (5, 7, 3)))


@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_decode__reads_all_16_bits_of_a_tiff_in_colour(planar):
    tifffile = pytest.importorskip("tifffile")
    values = np.random.default_rng(0).integers(0, 4096, (5, 7, 3), dtype=np.uint16)
    buffer = io.BytesIO()
    stored = values if planar == "contig" else np.moveaxis(values, 2, 0)
    tifffile.imwrite(buffer, stored, photometric="rgb", planarconfig=planar)
    decoded = np.asarray(decode_rgb(buffer.getvalue(), "x", DecodeOptions(value_range=(0, 4095))))
    assert np.array_equal(decoded, np.round(values * (255 / 4095)).astype(np.uint8))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_decode__turns_a_deep_tiff_in_colour_as_a_plain_one(orientation):
    tifffile = pytest.importorskip("tifffile")
    stored = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    decoded = []
    for pixels in (stored, stored.astype(np.uint16) * 257):
        buffer = io.BytesIO()
        tifffile.imwrite(buffer, pixels, photometric="rgb", extratags=[(274, 3, 1, orientation, True)])
        decoded.append(np.asarray(decode_rgb(buffer.getvalue(), "x")))
    assert np.array_equal(*decoded)


def test_decode__names_the_extra_for_a_tiff_in_deep_colours(monkeypatch):
    tifffile = pytest.importorskip("tifffile")
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, np.zeros((5, 7, 3), dtype=np.uint16), photometric="rgb")
    monkeypatch.setitem(__import__("sys").modules, "tifffile", None)
    with pytest.raises(UnreadableImage, match=r"16-bit colours; to read such files: pip install 'paucal\[tiff\]'"):
        check_decodes(buffer.getvalue(), "x")


def test_decode__reads_floats_in_the_range_of_their_set():
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    values[0, 0] = np.nan
    decoded = np.asarray(decode_rgb(encode(values), "x", DecodeOptions(value_range=(-1.0, 1.0))))[..., 0]
    assert decoded[0, 0] == 0
    assert decoded[7, 7] == 255
    assert np.array_equal(decoded.ravel()[1:], np.round((values.ravel()[1:] + 1) * 127.5).astype(np.uint8))


def test_decode__reads_integers_beyond_16_bits_in_the_range_of_their_set():
    values = np.array([[-100, 0, 100_000]], dtype=np.int32)
    decoded = np.asarray(decode_rgb(encode(values), "x", DecodeOptions(value_range=(0, 100_000))))[..., 0]
    assert decoded.tolist() == [[0, 0, 255]]


def test_to_8_bits__scales_a_range():
    assert list(to_8_bits(np.array([[0, 1000, 4095, 5000]]), (0, 4095)).tobytes()) == [0, 62, 255, 255]
