"""Preprocessing inside a graph beside the one that models are judged with."""

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.export.preprocessing import PixelPreprocessing
from paucal.models.preprocessing import Preprocessing
from paucal.types import UserError

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
SIZES = ((100, 140), (300, 57), (20, 30), (64, 64), (73, 73))


def photo(height, width, seed=0):
    """An image with edges and slopes of its own."""
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("resize", ["crop", "letterbox", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("size", "crop"), [((64, 64), 0.875), ((48, 80), 1.0)])
def test_pixel_input__is_the_evaluation_transform_but_for_roundings(resize, interpolation, size, crop):
    preprocessing = Preprocessing(size, crop, interpolation, MEAN, STD, None, resize)
    module = PixelPreprocessing(preprocessing)
    for height, width in SIZES:
        pixels = photo(height, width)
        wanted, _ = preprocessing.transform()(Image.fromarray(pixels))
        levels = ((module(torch.from_numpy(pixels)[None])[0] - wanted) * 255 * torch.tensor(STD).view(3, 1, 1)).abs()
        assert levels.max() <= 1.01
        assert (levels > 0.5).float().mean() < 0.02


def test_pixel_input__gives_every_image_of_a_batch_its_own():
    module = PixelPreprocessing(Preprocessing((32, 32), 0.9, "bicubic", MEAN, STD))
    both = torch.stack([torch.from_numpy(photo(50, 40, seed)) for seed in (0, 1)])
    torch.testing.assert_close(module(both)[1], module(both[1:])[0])


def test_pixel_input__refuses_images_of_16_bits():
    with pytest.raises(UserError, match=r"more than 8 bits.*--with-preprocessing"):
        PixelPreprocessing(Preprocessing((32, 32), 1.0, "bicubic", MEAN, STD, (0.0, 4095.0)))
