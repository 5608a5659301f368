"""Images of another depth than those of a model's training are told, on either side, for all kinds of files."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paucal.data.channels.pixel_format import bit_depth_notes, describe_bit_depth_difference, differs_in_bit_depth
from paucal.data.decode import DecodeOptions
from paucal.data.sources.opening import open_images

SHALLOW, DEEP = DecodeOptions(), DecodeOptions(value_range=(200.0, 4000.0))
BANDS = DecodeOptions(channels=4), DecodeOptions(channels=4, channel_ranges=((0.0, 9.0),) * 4)


def write(path: Path, deep: bool, bands: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0).integers(0, 255, (8, 8, bands)).astype(np.uint16 if deep else np.uint8)
    if path.suffix == ".npy":
        np.save(path, values)
    else:
        Image.fromarray(values[..., 0]).save(path)
    return path


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("name", "bands", "readings"),
    [("a.png", 1, (SHALLOW, DEEP)), ("a.tif", 1, (SHALLOW, DEEP)), ("a.npy", 4, BANDS)],
)
def test_depth__is_told_from_that_of_the_training(tmp_path: Path, name, bands, readings, deep):
    path = write(tmp_path / name, deep, bands)
    for source in (path, path.read_bytes()):
        assert [differs_in_bit_depth(source, name, reading) for reading in readings] == [deep, not deep]


def test_notes__count_the_images_of_a_set_that_differ(tmp_path: Path):
    for number in range(5):
        write(tmp_path / f"set/{number}.png", deep=number < 2)
    (tmp_path / "set/4.png").write_bytes(b"damaged")
    images = open_images(tmp_path / "set", labelled=False)
    assert bit_depth_notes(images, DEEP) == [
        f"{describe_bit_depth_difference(DEEP)} (2 of 5 sampled images): predictions are unreliable"
    ]
    assert bit_depth_notes(images, SHALLOW) == [
        f"{describe_bit_depth_difference(SHALLOW)} (2 of 5 sampled images): predictions are unreliable"
    ]
    assert (
        describe_bit_depth_difference(DEEP)
        == "images have 8 bits per channel, and the model was trained on images with more"
    )
    assert describe_bit_depth_difference(SHALLOW, "it has").startswith("it has more than 8 bits per channel, and")
    assert bit_depth_notes(open_images("digits"), SHALLOW) == []
