import io

import numpy as np
import pytest
from PIL import Image

from paucal.data.decode import DecodeOptions, decode_rgb, upright_rgb
from paucal.data.decoded.prepare import stored_side


def photo(width: int, height: int, form: str = "JPEG", **options) -> bytes:
    """A picture of smooth colours, whose left upper corner is bright and whose right one is red."""
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    pixels = np.stack([across, 1 - across, (1 - across) * (1 - down)], axis=2)
    buffer = io.BytesIO()
    Image.fromarray((255 * pixels).round().astype(np.uint8)).save(buffer, form, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "MPO"])
def test_decode__reduces_the_shorter_side(form):
    decoded = decode_rgb(photo(400, 300, form), "x", DecodeOptions(side=64))
    assert decoded.size == (85, 64)
    whole = decode_rgb(photo(400, 300, form), "x").resize((85, 64), Image.Resampling.BOX)
    assert np.abs(np.asarray(decoded).astype(int) - np.asarray(whole)).max() <= 6


def test_decode__leaves_alone_what_is_hardly_larger():
    source = photo(96, 100)
    assert decode_rgb(source, "x", DecodeOptions(side=64)).tobytes() == decode_rgb(source, "x").tobytes()
    assert decode_rgb(photo(97, 100), "x", DecodeOptions(side=64)).size == (64, 66)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_decode__reduces_turned_photos_upright(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    source = photo(400, 300, exif=exif)
    decoded = decode_rgb(source, "x", DecodeOptions(side=64))
    whole = decode_rgb(source, "x").resize(decoded.size, Image.Resampling.BOX)
    assert decoded.size == ((85, 64) if orientation < 5 else (64, 85))
    assert np.abs(np.asarray(decoded).astype(int) - np.asarray(whole)).max() <= 6


def test_upright_rgb__leaves_the_image_it_is_given_as_it_is():
    image = Image.open(io.BytesIO(photo(400, 300)))
    assert upright_rgb(image, DecodeOptions(side=64)).size == (85, 64)
    assert image.size == (400, 300)


def test_decode__reduces_once():
    once = decode_rgb(photo(400, 300), "x", DecodeOptions(side=64))
    assert upright_rgb(once, DecodeOptions(side=64)).tobytes() == once.tobytes()


@pytest.mark.parametrize("side", [8, 32, 33, 64, 65, 224, 256, 257, 1000, 4096])
def test_stored_side__is_at_least_twice_the_networks(side):
    assert stored_side([side]) >= 2 * side
    assert stored_side([side // 2, side]) == stored_side([side])


def test_stored_side__is_one_of_few():
    sides = [stored_side([side]) for side in (16, 32, 64, 96, 160, 224, 240, 384)]
    assert sides == [64, 64, 128, 512, 512, 512, 512, 1024]


def test_reduced_size__leaves_images_that_are_hardly_larger():
    sizes = [DecodeOptions(side=512).reduced_size(size) for size in ((4000, 3000), (700, 600))]
    assert sizes == [(683, 512), (700, 600)]
