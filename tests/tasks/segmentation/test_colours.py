"""The photometric distortion of the papers' programs, against plain loops."""

import colorsys

import numpy as np
import pytest
import torch

from paucal.data.randomness import reseed
from paucal.tasks.segmentation.crops import distort_colours, multiply_saturation


def pixels(seed: int, side: int = 12) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, side, side), dtype=np.uint8))


@pytest.mark.parametrize("seed", range(6))
def test_saturation__is_multiplied_in_hue_saturation_and_value(seed):
    image, factor = pixels(seed), (0.5, 0.8, 1.0, 1.2, 1.5, 0.0)[seed]
    found = multiply_saturation(image, factor)
    for row in range(12):
        for column in range(12):
            hue, share, value = colorsys.rgb_to_hsv(*(image[:, row, column] / 255).tolist())
            expected = colorsys.hsv_to_rgb(hue, min(1.0, share * factor), value)
            assert found[:, row, column].tolist() == pytest.approx([255 * one for one in expected], abs=1.0)


def test_each_change__has_a_chance_of_a_half():
    """Of four changes none is made in a sixteenth of the draws; the largest is that of brightness and contrast."""
    image = torch.full((3, 4, 4), 100, dtype=torch.uint8)  # grey: neither saturation nor hue can be seen
    coloured, draws, same, grey = pixels(0), 800, 0, []
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


def test_colours__depend_on_the_generator_alone():
    def drawn(seed):
        reseed(seed)
        return distort_colours(pixels(3))

    assert drawn(1).dtype == torch.uint8
    assert torch.equal(drawn(1), drawn(1))
    assert len({drawn(seed).sum().item() for seed in range(20)}) > 10
