"""Where the points of an augmented view come from, RandAugment's movements included."""

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import rand_augment_transform
from torch.nn.functional import affine_grid

from data.seeding import seeded
from paucal.data.views.augmentation import Augmentation, RandAugmentWithGeometry
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import TrainTransform

PLAIN = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
MOVES = ["Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"]
COLOURS = ["AutoContrast", "Color", "Sharpness"]
QUADRANTS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)]


def gradient(width, height):
    """Red is the x of a pixel's centre, green its y, as shares of the sides; blue is full, so that filling is not."""
    pixels = np.full((height, width, 3), 255.0)
    pixels[..., 0] = (np.arange(width) + 0.5)[None, :] / width * 255
    pixels[..., 1] = (np.arange(height) + 0.5)[:, None] / height * 255
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


@pytest.mark.parametrize("names", [[name] for name in MOVES] + [MOVES])
@pytest.mark.parametrize("size", [(120, 80), (64, 96)])
def test_located__says_where_each_pixel_came_from(names, size):
    policy = RandAugmentWithGeometry(
        rand_augment_transform("rand-m9-mstd0.5-n2-p1", {"img_mean": (0, 0, 0), "interpolation": 2}, names)
    )
    image, moved = gradient(*size), 0
    for seed in range(20):
        with seeded(seed):
            changed, theta = policy(image)
        view = torch.from_numpy(np.array(changed)).float() / 255
        source = affine_grid(theta[None, :2], [1, 3, *view.shape[:2]], align_corners=False)[0]
        shown = view[..., :2] * 2 - 1
        inside = (source.abs() < 0.9).all(-1) & (view[..., 2] > 0.999)
        assert inside.float().mean() > 0.02
        # Each of two operations rounds to a grey level (0.008) and to a pixel's part.
        assert (source - shown)[inside].abs().max() < 0.04
        # What lies outside is filled.
        outside = (source.abs() > 1.1).any(-1)
        assert (view[..., 2][outside] < 0.001).all()
        moved += not torch.allclose(theta, torch.eye(3))
    assert moved == 20


def quadrants(width, height):
    image = Image.new("RGB", (width, height))
    for index, colour in enumerate(QUADRANTS):
        left, top = (index % 2) * width // 2, (index // 2) * height // 2
        image.paste(colour, (left, top, left + width // 2, top + height // 2))
    return image


@pytest.mark.parametrize("description", [None, *MOVES, "all"])
def test_located_view__has_the_colour_that_its_geometry_says(description, monkeypatch):
    """Four coloured quadrants and hundreds of random views: every cell away from a border shows what theta says."""
    settings = {} if description is None else {"rand_augment": "rand-m9-mstd0.5-n2-p1"}
    names = {None: None, "all": MOVES + COLOURS}.get(description, [description])
    transform = TrainTransform(
        (56, 56), Augmentation(**{"rand_augment": None, "erase_prob": 0.0, **settings}), PLAIN, True
    )
    if names is not None:
        policy = transform._rand_augment_with_geometry.policy
        policy.ops = [op for op in policy.ops if op.name in names]
    image, right, cells = quadrants(96, 72), 0, 0
    palette = torch.tensor(QUADRANTS) / 255
    for seed in range(250):
        with seeded(seed):
            view, theta = transform(image)
        patches = view.unfold(1, 4, 4).unfold(2, 4, 4).flatten(3)  # 14 x 14 cells of 4 x 4 pixels
        # The colour of a cell, where it shows a single one: neither a border nor the filling.
        distance = (patches[None] - palette[:, :, None, None, None]).abs().amax(1)
        shown = (distance < 0.35).all(-1)
        clear = shown.any(0)
        x, y = affine_grid(theta[None], [1, 3, 14, 14], align_corners=False)[0].unbind(-1)
        expected = (x > 0).long() + 2 * (y > 0).long()
        right += (shown.long().argmax(0) == expected)[clear].sum().item()
        cells += clear.sum().item()
    assert cells > 250 * 40
    assert right / cells > 0.99


def test_located_view__shows_one_image_with_and_without_movement():
    transform = TrainTransform((32, 32), Augmentation(erase_prob=0.0), PLAIN, exact_geometry=True)
    thetas = []
    for seed in range(30):
        with seeded(seed):
            thetas.append(transform(quadrants(64, 64))[1])
    turned = [theta for theta in thetas if theta[0, 1].abs() > 1e-3 or theta[1, 0].abs() > 1e-3]
    assert 5 < len(turned) < 25
