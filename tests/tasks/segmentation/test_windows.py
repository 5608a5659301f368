"""Whole images through a network that sees windows."""

import pytest
import torch
from torch import nn

from paucal.tasks.segmentation.windows import WindowOptions, pixel_probabilities, window_logits, window_starts


class Plain(nn.Module):
    """Logits of a pixel that depend on that pixel alone."""

    def forward(self, images):
        return torch.cat([images[:, :1], -images[:, :1], images[:, 1:2] * 2], dim=1)


class Counting(nn.Module):
    """Says where in its window a pixel lies."""

    def forward(self, images):
        assert images.shape[2:] == (8, 8)
        places = torch.arange(64.0).view(1, 1, 8, 8).expand(len(images), 1, 8, 8)
        return torch.cat([places, torch.zeros_like(places)], dim=1)


@pytest.mark.parametrize(("length", "window", "overlap"), [(20, 8, 0.0), (20, 8, 0.5), (8, 8, 0.5), (9, 8, 1 / 3)])
def test_windows__cover_every_pixel_and_stay_within(length, window, overlap):
    starts = window_starts(length, window, overlap)
    assert starts[0] == 0
    assert starts[-1] == length - window
    seen = {place for start in starts for place in range(start, start + window)}
    assert seen == set(range(length))
    assert len(set(starts)) == len(starts)


@pytest.mark.parametrize("size", [(8, 8), (21, 13), (5, 30), (3, 4)])
@pytest.mark.parametrize("batch", [1, 5])
def test_windows__change_nothing_for_a_network_that_looks_at_pixels(size, batch):
    image = torch.randn(3, *size)
    options = WindowOptions((8, 8), overlap=0.4, batch=batch)
    expected = Plain()(image[None])[0]
    assert torch.allclose(window_logits(Plain(), image, options), expected, atol=1e-6)
    assert torch.allclose(pixel_probabilities(Plain(), image, options), expected.softmax(0), atol=1e-6)


def test_overlapping_windows__are_averaged():
    logits = window_logits(Counting(), torch.zeros(3, 8, 12), WindowOptions((8, 8), overlap=0.5))
    assert logits[0, 0].tolist() == [0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7]  # columns 4 to 7 are seen twice: 4..7 and 0..3


def test_mirror_images__are_turned_back():
    class Left(nn.Module):
        def forward(self, images):
            ramp = torch.linspace(1, -1, 8).expand(len(images), 1, 8, 8)
            return torch.cat([4 * ramp, torch.zeros_like(ramp)], dim=1)

    image = torch.randn(3, 8, 8)
    plain = pixel_probabilities(Left(), image, WindowOptions((8, 8)))
    both = pixel_probabilities(Left(), image, WindowOptions((8, 8), mirror=True))
    assert torch.allclose(both, (plain + plain.flip(-1)) / 2)
    assert not torch.allclose(both, plain)


def test_scales__are_averaged_at_the_size_of_the_image():
    image = torch.randn(3, 10, 14)
    one, two = (pixel_probabilities(Plain(), image, WindowOptions((8, 8), scales=(s,))) for s in (1.0, 1.5))
    both = pixel_probabilities(Plain(), image, WindowOptions((8, 8), scales=(1.0, 1.5)))
    assert both.shape == (3, 10, 14)
    assert torch.allclose(both, (one + two) / 2, atol=1e-6)
    assert torch.allclose(both.sum(0), torch.ones(10, 14), atol=1e-5)


class Recording(nn.Module):
    """Keeps the sizes of the images that it sees."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def forward(self, images):
        self.sizes.append(tuple(images.shape[2:]))
        return Plain()(images)


@pytest.mark.parametrize(
    ("size", "sides", "seen"),
    [
        ((20, 30), None, [(10, 15), (20, 30), (30, 45)]),
        ((20, 30), (64, 256), [(32, 48), (64, 96), (96, 144)]),
        ((30, 20), (256, 64), [(48, 32), (96, 64), (144, 96)]),
        ((10, 100), (64, 200), [(10, 100), (20, 200), (30, 300)]),  # the longer side would pass 200
    ],
)
def test_whole_images__are_seen_at_their_sides_times_each_scale(size, sides, seen):
    network, image = Recording(), torch.randn(3, *size)
    options = WindowOptions((8, 8), scales=(0.5, 1.0, 1.5), mirror=True, whole=True, resize_to=sides)
    shares = pixel_probabilities(network, image, options)
    assert network.sizes == [one for one in seen for _ in range(2)]  # and its mirror image
    assert shares.shape == (3, *size)
    assert torch.allclose(shares.sum(0), torch.ones(size), atol=1e-5)


def test_whole_images__are_seen_at_once_and_answered_pixel_by_pixel():
    image = torch.randn(3, 21, 13)
    found = pixel_probabilities(Plain(), image, WindowOptions((8, 8), whole=True))
    assert torch.allclose(found, Plain()(image[None])[0].softmax(0), atol=1e-6)


def test_windows__see_images_at_their_sides_too():
    network = Recording()
    pixel_probabilities(
        network, torch.randn(3, 10, 10), WindowOptions((8, 8), overlap=0.0, resize_to=(16, 64), batch=1)
    )
    assert network.sizes == [(8, 8)] * 4
