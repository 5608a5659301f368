"""Crops of images and their masks, drawn together; changes of colours against plain loops."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.data.dataset import SampleKey, collate
from paucal.data.masks.masked_images import images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.randomness import reseed
from paucal.data.views.normalisation import Normalisation
from paucal.tasks.segmentation.crops import (
    MASK,
    CropOptions,
    CropTransform,
    MaskedCrops,
    distort_colours,
    multiply_saturation,
)

STATISTICS = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def pictured(height: int = 40, width: int = 60, seed: int = 0):
    """An image whose grey level says the class of each pixel: 20 times it, and a bit."""
    coarse = np.random.default_rng(seed).integers(0, 5, (height // 10, width // 10), dtype=np.uint8)
    mask = np.kron(coarse, np.ones((10, 10), np.uint8))
    return Image.fromarray(np.repeat((mask * 40 + 20)[..., None], 3, axis=2)), mask


def drawn(options: CropOptions, seed: int, image, mask):
    reseed(seed)
    return CropTransform(options, STATISTICS)(image, mask)


@pytest.mark.parametrize("seed", range(8))
def test_crops__keep_every_pixel_with_its_class(seed):
    image, mask = pictured()
    options = CropOptions((24, 32), scale=(1.0, 1.0), vflip=0.5, colour=0.0)
    view, classes = drawn(options, seed, image, mask)
    assert view.shape == (3, 24, 32)
    assert classes.dtype == torch.uint8
    levels = ((view[0] * 0.5 + 0.5) * 255).round().long()
    assert torch.equal(levels, classes.long() * 40 + 20)


@pytest.mark.parametrize("seed", range(8))
def test_scaled_crops__keep_classes_whole_and_near_their_pixels(seed):
    image, mask = pictured()
    view, classes = drawn(CropOptions((24, 32), scale=(1.0, 1.8), colour=0.0), seed, image, mask)
    assert set(classes.unique().tolist()) <= {*range(5), 255}
    levels = ((view[0] * 0.5 + 0.5) * 255 - 20) / 40
    # Pixels at the edge of a class are mixed; inside, which a filter of 3 pixels tells, none is.
    plain = classes.float()[None, None]
    inside = torch.nn.functional.max_pool2d(plain, 5, 1, 2) == -torch.nn.functional.max_pool2d(-plain, 5, 1, 2)
    inside = inside[0, 0] & (classes != 255)
    assert int(inside.sum()) > 100
    assert float((levels - classes.float())[inside].abs().max()) < 0.2


def test_small_images__are_filled_with_the_mean_and_nothing_is_labelled_there():
    image, mask = pictured(20, 30)
    view, classes = drawn(CropOptions((64, 64), scale=(1.0, 1.0), hflip=0.0, colour=0.0), 0, image, mask)
    assert torch.equal(classes[:20, :30], torch.from_numpy(mask))
    assert (classes[20:] == 255).all()
    assert (classes[:, 30:] == 255).all()
    assert float(view[:, 20:].abs().max()) < 0.01  # the mean colour


@pytest.mark.parametrize("seed", range(10))
def test_images__are_brought_to_their_sides_before_they_are_scaled_and_cut(seed):
    """The grey level is the column of the image, so that the slope in a crop tells by how much it was scaled."""
    rng = np.random.default_rng(seed)
    height, width = (int(side) for side in rng.integers(60, 160, 2))
    ramp = np.repeat(np.arange(width, dtype=np.uint8)[None], height, 0)
    image = Image.fromarray(np.repeat(ramp[..., None], 3, axis=2))
    ratio = float(rng.uniform(0.5, 2.0))
    options = CropOptions((64, 64), (ratio, ratio), hflip=0.0, colour=0.0, resize_to=(64, 100))
    view, classes = drawn(options, seed, image, np.zeros((height, width), np.uint8))
    factor = ratio * min(64 / min(height, width), 100 / max(height, width))
    inside = (classes != 255).sum(1).max().item()
    levels = (view[0, 0] * 0.5 + 0.5) * 255
    middle = levels[inside // 4 : inside // 4 + inside // 2]
    slope = float((middle[-1] - middle[0]) / (len(middle) - 1))
    assert slope == pytest.approx(1 / factor, rel=0.06)
    assert inside == pytest.approx(min(64, width * factor), abs=1.5)
    assert (classes != 255).sum(0).max().item() == pytest.approx(min(64, height * factor), abs=1.5)


def test_small_images_at_their_sides__fill_the_crop():
    image, mask = pictured(20, 30)
    for sides, filled in ((None, 20 * 30 / 64**2), ((64, 256), 1.0)):
        options = CropOptions((64, 64), scale=(1.0, 1.0), colour=0.0, resize_to=sides)
        assert float((drawn(options, 0, image, mask)[1] != 255).float().mean()) == pytest.approx(filled, abs=1e-3)


def test_photometric_colours__change_the_image_alone():
    image, mask = pictured()
    options = {"size": (40, 60), "scale": (1.0, 1.0), "hflip": 0.0}
    changed = [drawn(CropOptions(**options, colour="photometric"), seed, image, mask) for seed in range(12)]
    plain = drawn(CropOptions(**options, colour=0.0), 0, image, mask)
    assert all(torch.equal(crop[1], plain[1]) for crop in changed)
    assert sum(float((crop[0] - plain[0]).abs().mean()) > 0.01 for crop in changed) > 6


def test_flips__turn_image_and_mask_together():
    image, mask = pictured()
    options = {"size": (40, 60), "scale": (1.0, 1.0), "colour": 0.0}
    plain = drawn(CropOptions(**options, hflip=0.0), 0, image, mask)
    across, down = (
        drawn(CropOptions(**options, hflip=h, vflip=v), 0, image, mask) for h, v in ((1.0, 0.0), (0.0, 1.0))
    )
    for one, two, three in zip(plain, across, down, strict=True):
        assert torch.equal(two, one.flip(-1))
        assert torch.equal(three, one.flip(-2))
    assert not torch.equal(plain[0], across[0])


def test_crops_of_one_class__are_drawn_again():
    mask = np.zeros((100, 100), np.uint8)
    mask[:20] = 1
    image = Image.fromarray(np.zeros((100, 100, 3), np.uint8))
    share = {
        most: np.mean(
            [
                len(drawn(CropOptions((20, 20), (1.0, 1.0), most), seed, image, mask)[1].unique()) > 1
                for seed in range(40)
            ]
        )
        for most in (0.95, 1.0)
    }
    assert share[0.95] > 0.8
    assert share[1.0] < 0.4


def test_colours__change_the_image_alone():
    image, mask = pictured()
    options = {"size": (40, 60), "scale": (1.0, 1.0), "hflip": 0.0}
    plain, changed = (drawn(CropOptions(**options, colour=c), 3, image, mask) for c in (0.0, 0.4))
    assert torch.equal(plain[1], changed[1])
    assert float((plain[0] - changed[0]).abs().mean()) > 0.01


def test_samples__depend_on_seed_epoch_image_and_repeat_alone(tmp_path):
    for number in range(3):
        image, mask = pictured(seed=number)
        for folder, picture in (("images", image), ("masks", Image.fromarray(mask))):
            (tmp_path / folder).mkdir(exist_ok=True)
            picture.save(tmp_path / folder / f"{number}.png")
    pairs = find_pairs(tmp_path)
    masked = read_masks(images_of_pairs(pairs, str(tmp_path)), pairs)
    crops = MaskedCrops(masked.images, masked.masks, CropTransform(CropOptions((24, 24)), STATISTICS), seed=3)
    keys = [SampleKey(0, 1), SampleKey(0, 2), SampleKey(1, 1), SampleKey(0, 1, 1)]
    together, backwards = crops.__getitems__(keys), crops.__getitems__(keys[::-1])[::-1]
    for one, two in zip(together, backwards, strict=True):
        assert torch.equal(one.views[0], two.views[0])
    assert len({sample.views[0].sum().item() for sample in together}) == 4
    batch = collate(together)
    assert batch.views[0].shape == (4, 3, 24, 24)
    assert batch.label_maps is not None
    assert batch.label_maps[MASK].shape == (4, 24, 24)


def coloured_noise(seed: int, side: int = 12) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, side, side), dtype=np.uint8))


@pytest.mark.parametrize("seed", range(6))
def test_saturation__is_multiplied_in_hue_saturation_and_value(seed):
    image, factor = coloured_noise(seed), (0.5, 0.8, 1.0, 1.2, 1.5, 0.0)[seed]
    saturated = multiply_saturation(image, factor)
    for row in range(12):
        for column in range(12):
            hue, share, value = colorsys.rgb_to_hsv(*(image[:, row, column] / 255).tolist())
            expected = colorsys.hsv_to_rgb(hue, min(1.0, share * factor), value)
            assert saturated[:, row, column].tolist() == pytest.approx([255 * value for value in expected], abs=1.0)


def test_each_colour_change__has_a_chance_of_a_half():
    """Of four changes none is made in a sixteenth of the draws; the largest is that of brightness and contrast."""
    image = torch.full((3, 4, 4), 100, dtype=torch.uint8)  # grey: neither saturation nor hue can be seen
    coloured, draws, same, grey = coloured_noise(0), 800, 0, []
    for seed in range(draws):
        reseed(seed)
        same += torch.equal(distort_colours(coloured), coloured)
        reseed(seed)
        grey.append(int(distort_colours(image)[0, 0, 0]))
    assert same / draws == pytest.approx(1 / 16, abs=0.025)
    assert np.mean([value == 100 for value in grey]) == pytest.approx(1 / 4, abs=0.05)
    assert min(grey) >= (100 - 32) // 2
    assert max(grey) <= (100 + 32) * 1.5
    assert min(grey) < 50 < 150 < max(grey)


def test_colour_changes__depend_on_the_generator_alone():
    def changed(seed):
        reseed(seed)
        return distort_colours(coloured_noise(3))

    assert changed(1).dtype == torch.uint8
    assert torch.equal(changed(1), changed(1))
    assert len({changed(seed).sum().item() for seed in range(20)}) > 10
