import numpy as np
import pytest
from PIL import Image

from paucal.data.channels.pixel_format import measure_value_ranges
from paucal.data.decode import DEFAULT_DECODE_OPTIONS, DecodeOptions
from paucal.data.decoded.prepare import prepare_images
from paucal.data.sources.opening import open_images


def measure_range(images):
    return measure_value_ranges(DecodeOptions(), images)[0].value_range


@pytest.fixture
def save(tmp_path):
    """Write arrays as images below class folders and open the set."""

    def make(*pictures: np.ndarray, suffix: str = ".tif"):
        for number, values in enumerate(pictures):
            file = tmp_path / "set" / "ab"[number % 2] / f"{number:03d}{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(file)
        return open_images(tmp_path / "set")

    return make


def test_measure_range__is_that_of_the_whole_set(save):
    dark, bright = np.full((8, 8), 100, np.uint16), np.full((8, 8), 4095, np.uint16)
    low, high = measure_range(save(dark, bright, dark)) or (0, 0)
    assert low == 100
    assert high == 4095


def test_measure_range__is_not_stretched_by_hot_pixels(save):
    values = np.random.default_rng(0).integers(200, 3000, (300, 300), dtype=np.uint16)
    values[0, 0] = 65535
    low, high = measure_range(save(values, values)) or (0, 0)
    assert 200 <= low <= 202
    assert 2990 <= high <= 3000


def test_measure_range__of_floats_leaves_out_what_is_no_number(save):
    values = np.linspace(-2, 6, 64, dtype=np.float32).reshape(8, 8)
    values[0, :2] = np.nan, np.inf
    low, high = measure_range(save(values, values)) or (0, 0)
    assert low == pytest.approx(values[0, 2], abs=0.01)
    assert high == pytest.approx(6, abs=0.01)


def test_measure_range__is_none_for_8_bits_and_rises_for_one_value(save):
    eight = np.zeros((8, 8), np.uint8)
    assert measure_range(save(eight, eight, suffix=".png")) is None
    assert measure_range(save(np.full((4, 4), 7, np.uint16), np.full((4, 4), 7, np.uint16))) == (7, 8)


def test_measure_range__of_images_in_memory_is_none(make_set):
    assert measure_range(make_set([0, 1])) is None


def test_prepare__reads_a_12_bit_set_with_all_of_256_levels(save):
    values = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    images, _ = prepare_images(save(values, values), DEFAULT_DECODE_OPTIONS)
    assert len(np.unique(np.asarray(images.store.read(0)))) == 256
    low, high = images.decode_options.value_range or (0, 0)
    assert low < 5
    assert high > 4090


def test_prepare__keeps_the_range_it_is_given(save):
    values = np.full((8, 8), 1000, np.uint16)
    from paucal.data.decode import DecodeOptions

    images, _ = prepare_images(save(values, values), DecodeOptions(value_range=(0, 2000)))
    assert np.asarray(images.store.read(1))[0, 0].tolist() == [128, 128, 128]  # 127.5, rounded to even
