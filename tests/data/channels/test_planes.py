"""Pictures of any number of channels go through what a view is made of channel by channel."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from paucal.data.channels.pixels import MultichannelImage, image_from_pixels, moments_of, pixels_of
from paucal.data.randomness import preserve_generators, reseed
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.multi_crop import DinoCrop
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import EvalTransform, TrainTransform

CHANGES = [
    lambda one: one.resize((20, 10), Image.Resampling.BICUBIC, reducing_gap=2.0),
    lambda one: one.crop((-3, 2, 11, 20)),
    lambda one: one.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    lambda one: one.rotate(20, resample=Image.Resampling.BILINEAR),
    lambda one: one.transform(one.size, Image.Transform.AFFINE, (1, 0.2, 3, 0, 1, 0)),
    lambda one: one.filter(ImageFilter.GaussianBlur(2)),
    lambda one: one.copy(),
]


def made(channels: int, height: int = 24, width: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


def test_pixels__come_back_as_they_were():
    for channels in (1, 2, 3, 5):
        pixels = made(channels)
        assert (pixels_of(image_from_pixels(pixels)) == pixels).all()
        assert isinstance(image_from_pixels(pixels), MultichannelImage) == (channels != 3)


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_change__is_pillows_of_every_channel(number):
    pixels, change = made(5), CHANGES[number]
    found = pixels_of(change(image_from_pixels(pixels)))
    expected = [np.asarray(change(Image.fromarray(pixels[..., channel]))) for channel in range(5)]
    assert (found == np.stack(expected, 2)).all()
    rgb = np.asarray(change(Image.fromarray(pixels[..., :3])))
    assert (found[..., :3] == rgb).all()  # as an image of colours would be changed


@pytest.mark.parametrize(("channels", "shown"), [(1, (0, 0, 0)), (2, (0, 1, None)), (5, (0, 1, 2))])
def test_planes__are_an_rgb_image_to_whoever_looks(channels, shown):
    pixels = made(channels)
    seen = np.asarray(image_from_pixels(pixels).convert("RGB"))
    for place, channel in enumerate(shown):
        assert (seen[..., place] == (0 if channel is None else pixels[..., channel])).all()


def test_planes__can_be_sent_to_another_process():
    pixels = made(4)
    assert (pixels_of(pickle.loads(pickle.dumps(image_from_pixels(pixels)))) == pixels).all()


def test_planes__of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="of one size"):
        MultichannelImage([Image.new("L", (2, 2)), Image.new("L", (2, 3))])


def test_moments__are_those_of_every_channel():
    pixels = made(5)
    values = pixels / 255
    expected = [values.mean((0, 1)), np.square(values).mean((0, 1))]
    np.testing.assert_allclose(moments_of(image_from_pixels(pixels)), expected)


FIVE = Normalisation((0.1, 0.2, 0.3, 0.4, 0.5), (0.2, 0.2, 0.2, 0.3, 0.3))


def drawn(transform, image):
    with preserve_generators():
        reseed(0, 1, 2)
        return transform(image)


@pytest.mark.parametrize("resize", ["crop", "letterbox", "squash"])
def test_eval_view__has_the_colours_of_an_rgb_image_in_its_first_channels(resize):
    pixels, three = made(5), Normalisation(FIVE.mean[:3], FIVE.std[:3])
    view, theta = EvalTransform((16, 16), FIVE, resize=resize)(image_from_pixels(pixels))
    rgb, its = EvalTransform((16, 16), three, resize=resize)(Image.fromarray(pixels[..., :3]))
    torch.testing.assert_close(view[:3], rgb, rtol=0, atol=0)
    torch.testing.assert_close(theta, its, rtol=0, atol=0)
    assert view.shape == (5, 16, 16)


@pytest.mark.parametrize("exact", [False, True])
def test_train_view__moves_all_channels_together(exact):
    """Channels that are equal stay equal under everything that training does, and places are filled with the mean."""
    same = np.repeat(made(1), 5, axis=2)
    augmentation = Augmentation(rand_augment="rand-m9-n3-p1-inc1", erase_prob=0)
    even = Normalisation((0.5,) * 5, (0.25,) * 5)
    view, _ = drawn(TrainTransform((16, 16), augmentation, even, exact), image_from_pixels(same))
    assert view.shape == (5, 16, 16)
    assert float(view.std()) > 0.1
    assert all(torch.equal(view[0], view[channel]) for channel in range(1, 5))


def test_train_view__changes_no_values_where_there_are_no_colours():
    """All channels have one value each, and nothing but the mean is filled in: operations of colours are left out."""
    flat = np.broadcast_to(np.array([10, 60, 110, 160, 210], dtype=np.uint8), (24, 32, 5))
    mean = Normalisation(tuple(value / 255 for value in (10, 60, 110, 160, 210)), (1.0,) * 5)
    transform = TrainTransform((16, 16), Augmentation(rand_augment="rand-m9-n4-p1-inc1", erase_prob=0), mean)
    for seed in range(20):
        with preserve_generators():
            reseed(0, seed, 0)
            view, _ = transform(image_from_pixels(np.ascontiguousarray(flat)))
        assert float(view.abs().max()) < 1.5 / 255


def test_dino_crop__blurs_and_keeps_values():
    view, _ = drawn(DinoCrop((16, 16), (0.4, 1.0), FIVE, 1.0, 1.0, jitter_prob=1.0), image_from_pixels(made(5)))
    assert view.shape == (5, 16, 16)
    flat = np.full((24, 32, 2), 200, dtype=np.uint8)
    kept, _ = drawn(DinoCrop((8, 8), (0.4, 1.0), Normalisation((0.0, 0.0), (1.0, 1.0)), 1, 1), image_from_pixels(flat))
    assert (kept * 255).round().unique().tolist() == [200]  # neither solarised nor jitter_colours


def test_shown__is_rgb_for_any_number_of_channels():
    for channels in (1, 2, 3, 5):
        normalisation = Normalisation((0.5,) * channels, (0.25,) * channels)
        views = normalisation.apply(image_from_pixels(made(channels)))[None]
        seen = normalisation.to_display(views)
        assert seen.shape == (1, 3, 24, 32)
        assert (seen[0, 0].numpy() == made(channels)[..., 0]).all()
        if channels == 2:
            assert not seen[0, 2].any()


def test_multichannel_image__is_shown_as_rgb_and_resized_in_all_channels():
    image = MultichannelImage([Image.new("L", (4, 2), level) for level in (10, 20, 30, 40, 50)])
    assert (image.size, image.mode) == ((4, 2), "RGB")
    assert pixels_of(image.resize((2, 1))).tolist() == [[[10, 20, 30, 40, 50], [10, 20, 30, 40, 50]]]
