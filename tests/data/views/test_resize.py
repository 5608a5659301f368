import numpy as np
import pytest
import torch
from PIL import Image

from data.seeding import seeded
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import EvalTransform, TrainTransform, match_aspect_ratio

PLAIN = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
GREY = Normalisation((0.4, 0.4, 0.4), (0.2, 0.2, 0.2))
NO_COLOUR = {"rand_augment": None, "erase_prob": 0.0}


def gradient(width: int, height: int) -> Image.Image:
    """Red is the normalised x of the pixel's centre, green its y, blue is full."""
    pixels = np.full((height, width, 3), 255.0)
    pixels[..., 0] = (np.arange(width) + 0.5)[None, :] / width * 255
    pixels[..., 1] = (np.arange(height) + 0.5)[:, None] / height * 255
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def error(view: torch.Tensor, theta: torch.Tensor) -> float:
    """The largest distance from what a pixel shows to where theta says, where it shows the image."""
    grid = torch.nn.functional.affine_grid(theta[None], [1, *view.shape], align_corners=False)[0]
    shown = view[:2].permute(1, 2, 0) * 2 - 1
    inside = (grid.abs() < 0.8).all(dim=-1) & (view[2] > 0.99)
    assert inside.float().mean() > 0.2
    return (grid - shown)[inside].abs().max().item()


@pytest.mark.parametrize("resize", ["letterbox", "squash"])
@pytest.mark.parametrize("source", [(160, 120), (90, 200), (64, 64)])
def test_transforms__geometry_points_to_what_a_fitted_view_shows(resize, source):
    image = gradient(*source)
    view, theta = EvalTransform((48, 64), PLAIN, 1.0, resize=resize)(image)
    assert view.shape == (3, 48, 64)
    assert error(view, theta) < 0.05
    for crop in ("random-resized", "padded", "none"):
        augmentation = Augmentation(crop=crop, scale=(0.4, 1.0), padding=6, **NO_COLOUR)
        with seeded(3):
            view, theta = TrainTransform((48, 64), augmentation, PLAIN, True, resize)(image)
        assert error(view, theta) < 0.06


def test_eval__letterbox_shows_all_of_a_wide_image_between_bars_that_say_nothing():
    view, theta = EvalTransform((32, 32), GREY, 1.0, resize="letterbox")(Image.new("RGB", (64, 32), "white"))
    assert view[:, :6].abs().max() < 0.02  # the mean colour
    assert view[:, 26:].abs().max() < 0.02
    assert (view[:, 9:23] == 3.0).all()
    assert theta.tolist() == [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]


def test_eval__squash_shows_all_of_a_wide_image():
    view, theta = EvalTransform((32, 32), PLAIN, 1.0, resize="squash")(gradient(64, 32))
    assert view[0, :, 0].max() < 0.05
    assert view[0, :, -1].min() > 0.95
    assert theta.tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize("resize", ["crop", "letterbox", "squash"])
def test_fitted__leaves_images_of_the_right_shape_alone(resize):
    image = gradient(64, 48)
    assert match_aspect_ratio(image, (24, 32), resize, GREY, "bicubic")[0] is image


@pytest.mark.parametrize(("size", "shape"), [((100, 40), (40, 40)), ((40, 100), (40, 40))])
def test_fitted__squashes_to_the_smaller_size(size, shape):
    assert match_aspect_ratio(gradient(*size), (8, 8), "squash", GREY, "bicubic")[0].size == shape
    assert match_aspect_ratio(gradient(*size), (8, 8), "letterbox", GREY, "bicubic")[0].size == (100, 100)
