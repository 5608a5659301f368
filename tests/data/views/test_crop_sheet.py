import numpy as np
import torch
from PIL import Image

from paucal.data.views.normalisation import Normalisation
from paucal.data.views.sheets import draw_crop_sheet
from paucal.types import Batch

NORMALISATION = Normalisation()


def batch_of(sizes: list[tuple[int, int]], images: int) -> tuple[Batch, list[list[tuple[int, int, int]]]]:
    """Crops of one colour each; the colour tells image and crop."""
    colours = [[(40 * row, 20 * column, 90) for column in range(len(sizes))] for row in range(images)]
    views = [
        torch.stack([NORMALISATION.apply(Image.new("RGB", (w, h), colours[row][column])) for row in range(images)])
        for column, (h, w) in enumerate(sizes)
    ]
    return Batch(torch.arange(images), views), colours


def test_crop_sheet__a_row_for_each_image_and_all_crops_at_one_scale():
    batch, colours = batch_of([(32, 32), (32, 32), (16, 16), (16, 20)], 3)
    page = np.asarray(draw_crop_sheet(batch, NORMALISATION))
    assert page.shape == (3 * (96 + 4) + 4, 4 + 2 * (96 + 4) + 12 + (48 + 4) + 12 + (60 + 4), 3)
    lefts = [4, 104, 216, 280]
    for row in range(3):
        for left, (height, width), colour in zip(
            lefts, [(96, 96), (96, 96), (48, 48), (48, 60)], colours[row], strict=True
        ):
            tile = page[4 + 100 * row : 4 + 100 * row + height, left : left + width]
            assert (tile == colour).all()
    assert (page[60:100, 216:] == 255).all()  # a local crop is as much smaller as it is


def test_crop_sheet__shows_six_images_at_most_and_does_not_enlarge_large_ones():
    batch, _ = batch_of([(224, 224), (96, 96)], 9)
    assert draw_crop_sheet(batch, NORMALISATION).size == (4 + 228 + 12 + 100, 6 * 228 + 4)
