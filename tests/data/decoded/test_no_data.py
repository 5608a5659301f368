"""Values that stand for no data do not squeeze the real ones."""

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from paucal.data.channels.pixel_format import measure_value_ranges
from paucal.data.channels.pixels import RGB
from paucal.data.decode import DecodeOptions
from paucal.data.decoded.prepare import prepare_images
from paucal.data.sources.opening import open_images

HEIGHTS = np.random.default_rng(0).uniform(0, 3000, (64, 64)).astype(np.float32)


def save(folder, values: np.ndarray, no_data: str | None = None):
    for number in range(4):
        file = folder / "ab"[number % 2] / f"{number}.tif"
        file.parent.mkdir(parents=True, exist_ok=True)
        tags = ImageFileDirectory_v2()
        if no_data is not None:
            tags[42113], tags.tagtype[42113] = no_data, 2
        Image.fromarray(values).save(file, tiffinfo=tags)
    return open_images(folder)


def filled(values: np.ndarray, fill: float) -> np.ndarray:
    found = values.copy()
    found[:20] = fill
    return found


@pytest.mark.parametrize(
    ("values", "no_data", "note"),
    [
        (
            filled(HEIGHTS, -9999),
            None,
            "-9999 (31.2 % of the values) lies far from all other values, and is treated as no data",
        ),
        (filled(HEIGHTS, -9999), "-9999", None),
        (filled(HEIGHTS, 0.5) * 0 + filled(HEIGHTS, 7777), "7777", None),
        (filled(HEIGHTS.astype(np.int32), -32768), None, "is treated as no data"),
        (filled(HEIGHTS.astype(np.uint16), 65535), "65535", None),
        (filled(HEIGHTS, -3.4028235e38), None, "beyond ±1e+30, and are treated as no data"),
        (filled(HEIGHTS, np.nan), None, "NaN or infinite (in 4 of 4 sampled images); NaN is read as black"),
        (filled(HEIGHTS, np.inf), None, "NaN or infinite"),
    ],
)
def test_range__is_that_of_the_measurements(tmp_path, values, no_data, note):
    images = save(tmp_path / "set", values, no_data)
    low, high = measure_value_ranges(DecodeOptions(), images)[0].value_range or (0, 0)
    assert 0 <= low < 10
    assert 2990 < high <= 3000
    prepared, _ = prepare_images(images, DecodeOptions())
    assert len(np.unique(np.asarray(prepared.store.read(0)))) > 250
    assert any(note in one for one in prepared.notes) if note else len(prepared.notes) == len(images.notes)


@pytest.mark.parametrize("fill", [0, 65535])
def test_range__keeps_what_may_be_measured_and_says_so(tmp_path, fill):
    values = filled((HEIGHTS / 3 + 5000).astype(np.uint16), fill)
    reading, notes = measure_value_ranges(DecodeOptions(), save(tmp_path / "set", values))
    assert reading.value_range is not None
    assert fill in reading.value_range
    assert len(notes) == 1
    assert "means no data, write NaN" in notes[0]


def test_range__of_ordinary_images_says_nothing(tmp_path):
    for number, values in enumerate((HEIGHTS, np.where(HEIGHTS > 1500, 4095, 100).astype(np.uint16), HEIGHTS - 1500)):
        assert measure_value_ranges(DecodeOptions(channels=RGB), save(tmp_path / str(number), values))[1] == []
