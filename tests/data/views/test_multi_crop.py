"""Crops of self-distillation: what is done, how often, and where every point comes from."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as peer

from data.seeding import seeded
from paucal.data.dataset import SampleKey, ViewDataset
from paucal.data.images import ImageSet
from paucal.data.stores import ArrayStore
from paucal.data.views import multi_crop
from paucal.data.views.multi_crop import DinoCrop, build_crop_transforms, jitter_colours
from paucal.data.views.normalisation import Normalisation
from paucal.types import Crops, UserError

PLAIN = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
WHOLE = (1.0, 1.0)
BLURLESS = (0.0, 0.0)
NOTHING = {"blur_prob": 0.0, "solarise_prob": 0.0, "hflip": 0.0, "jitter_prob": 0.0}


def coordinates(width: int, height: int) -> Image.Image:
    """Red is the normalised x of the pixel's centre, green its y, both from -1 to 1 over the grey range."""
    pixels = np.zeros((height, width, 3))
    pixels[..., 0] = (np.arange(width) + 0.5) / width * 255
    pixels[..., 1] = ((np.arange(height) + 0.5) / height * 255)[:, None]
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def noise(side: int = 24, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def pixels_of(view: torch.Tensor) -> np.ndarray:
    return view.mul(255).round().to(torch.uint8).permute(1, 2, 0).numpy()


@pytest.fixture
def no_grey(monkeypatch):
    monkeypatch.setattr(multi_crop, "GREY_PROB", 0.0)


@pytest.mark.parametrize("size", [(48, 48), (48, 64), (300, 260)])
@pytest.mark.parametrize("source", [(160, 120), (90, 200)])
def test_dino_crop__geometry_points_to_what_the_view_shows(size, source, no_grey):
    crop, flips = DinoCrop(size, (0.2, 1.0), PLAIN, 0.0, 0.0, jitter_prob=0.0), set()
    for seed in range(8):
        with seeded(seed):
            view, theta = crop(coordinates(*source))
        assert view.shape == (3, *size)
        grid = torch.nn.functional.affine_grid(theta[None], [1, 3, *size], align_corners=False)[0]
        shown = view[:2].permute(1, 2, 0) * 2 - 1
        margin = 8  # enlarged crops repeat the pixels of their edge
        error = (grid - shown)[margin:-margin, margin:-margin].abs().max()
        assert error < 0.04  # three pixels of 160 are 0.0375
        flips.add(bool(theta[0, 0] < 0))
    assert flips == {True, False}


def shares_of_changes(monkeypatch, probs: tuple[float, float], draws: int) -> dict[str, float]:
    """How often each change happened, told by what the crop calls."""
    calls: list[str] = []
    monkeypatch.setattr(multi_crop, "jitter_colours", lambda view: calls.append("jitter") or view)
    monkeypatch.setattr(ImageFilter.GaussianBlur, "filter", lambda self, view: calls.append("blur") or view)
    monkeypatch.setattr(Image.Image, "point", lambda view, table: calls.append("solarise") or view)
    monkeypatch.setattr(Image.Image, "convert", lambda view, mode: calls.append(f"to {mode}") or view)
    monkeypatch.setattr(Image.Image, "transpose", lambda view, method: calls.append("flip") or view)
    crop, image = DinoCrop((9, 9), WHOLE, PLAIN, *probs), Image.new("RGB", (9, 9))
    with seeded(5):
        for _ in range(draws):
            crop(image)
    return {name: calls.count(name) / draws for name in ("flip", "jitter", "to L", "blur", "solarise")}


@pytest.mark.parametrize("probs", [multi_crop.FIRST_PROBS, multi_crop.OTHER_PROBS, multi_crop.LOCAL_PROBS])
def test_dino_crop__changes_as_often_as_published(monkeypatch, probs):
    found, draws = shares_of_changes(monkeypatch, probs, 1500), 1500
    expected = {"flip": 0.5, "jitter": 0.8, "to L": 0.2, "blur": probs[0], "solarise": probs[1]}
    for name, share in expected.items():
        assert found[name] == pytest.approx(share, abs=4 * (share * (1 - share) / draws) ** 0.5), name


def test_probabilities__are_those_of_the_paper():
    assert (multi_crop.FIRST_PROBS, multi_crop.OTHER_PROBS, multi_crop.LOCAL_PROBS) == (
        (1.0, 0.0),
        (0.1, 0.2),
        (0.5, 0.0),
    )
    assert (multi_crop.JITTER, multi_crop.JITTER_PROB, multi_crop.GREY_PROB) == ((0.4, 0.4, 0.2, 0.1), 0.8, 0.2)


def test_dino_crop__solarise_and_grey_are_torchvisions(monkeypatch):
    image = noise()
    monkeypatch.setattr(multi_crop, "GREY_PROB", 1.0)
    crop = whole_crop(solarise_prob=1.0)
    expected = peer.solarize(peer.rgb_to_grayscale(image, 3), 128)
    np.testing.assert_array_equal(pixels_of(crop(image)[0]), np.asarray(expected))


def test_dino_crop__blur_is_pillows_with_radii_over_the_range(no_grey, monkeypatch):
    radii: list[float] = []
    blur = ImageFilter.GaussianBlur
    monkeypatch.setattr(ImageFilter, "GaussianBlur", lambda radius: radii.append(radius) or blur(radius))
    crop, image = whole_crop(blur_prob=1.0, blur=(0.5, 1.5)), noise()
    with seeded(0):
        views = [crop(image)[0] for _ in range(300)]
    np.testing.assert_array_equal(pixels_of(views[7]), np.asarray(image.filter(blur(radii[7]))))
    assert len(radii) == 300
    assert 0.5 <= min(radii) < 0.52 < 1.48 < max(radii) <= 1.5
    assert np.mean(radii) == pytest.approx(1.0, abs=0.06)


def whole_crop(**changes) -> DinoCrop:
    crop = DinoCrop((24, 24), WHOLE, PLAIN, **{**NOTHING, **changes})
    crop._crop = v2.RandomResizedCrop(24, WHOLE, (1.0, 1.0))
    return crop


def test_jittered__is_torchvisions_colour_jitter_with_the_same_factors(monkeypatch):
    image, order = noise(), [3, 0, 2, 1]
    monkeypatch.setattr(torch, "rand", lambda n: torch.tensor([0.0, 0.75, 1.0, 0.25]))
    monkeypatch.setattr(torch, "randperm", lambda n: torch.tensor(order))
    steps = [
        lambda view: peer.adjust_brightness(view, 0.6),
        lambda view: peer.adjust_contrast(view, 1.2),
        lambda view: peer.adjust_saturation(view, 1.2),
        lambda view: peer.adjust_hue(view, -0.05),
    ]
    expected = image
    for number in order:
        expected = steps[number](expected)
    np.testing.assert_array_equal(np.asarray(jitter_colours(image)), np.asarray(expected))


def test_jittered__draws_orders_and_factors_anew():
    image = noise()
    with seeded(1):
        results = {jitter_colours(image).tobytes() for _ in range(20)}
    assert len(results) == 20


@pytest.mark.parametrize("pipeline", ["dino", "alike", "deit"])
@pytest.mark.parametrize(
    "groups",
    [
        [Crops(2, 24), Crops(8, 12)],
        [Crops(2, 24)],
        [Crops(2, 24), Crops(0, 12)],
        [Crops(1, (24, 32)), Crops(2, 16, (0.1, 0.3)), Crops(6, (8, 12))],
        [Crops(3), Crops(2, 40)],
    ],
)
def test_crop_views__any_groups_in_their_order(pipeline, groups, make_set):
    views = build_crop_transforms(pipeline, groups, PLAIN, image_size=(20, 28))
    dataset = ViewDataset(make_set([0, 0], side=30), views, seed=3, with_labels=False, with_geometry=True)
    sample = dataset[SampleKey(1, 1)]
    sizes = [
        (c.size, c.size) if isinstance(c.size, int) else c.size or (20, 28) for c in groups for _ in range(c.count)
    ]
    assert [tuple(view.shape[1:]) for view in sample.views] == sizes
    assert len(sample.geometry) == len(sizes)


@pytest.mark.parametrize("pipeline", ["dino", "alike", "deit"])
def test_crop_views__the_same_key_gives_the_same_crops(pipeline):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 30, 30, 3), dtype=np.uint8)
    images = ImageSet("made", "made", (), list("abc"), np.full(3, -1), [""] * 3, ArrayStore(pixels))
    views = build_crop_transforms(pipeline, [Crops(2, 24), Crops(3, 12)], PLAIN)
    dataset = ViewDataset(images, views, seed=3, with_labels=False)
    first = dataset[SampleKey(1, 2)].views
    dataset[SampleKey(0, 0)]
    again = dataset[SampleKey(1, 2)].views
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (SampleKey(2, 2), SampleKey(1, 2, 1)):
        assert not torch.equal(dataset[other].views[0], first[0])
    assert not torch.equal(first[0], first[1])


def areas(pipeline: str, groups: list[Crops]) -> list[tuple[float, float]]:
    """Smallest and largest share of the image that the crops of each transform cover, from their geometry."""
    image, found = noise(64), []
    with seeded(0):
        for transform, _ in build_crop_transforms(pipeline, groups, PLAIN):
            shares = [abs(theta[0, 0] * theta[1, 1]).item() for _, theta in (transform(image) for _ in range(150))]
            found.append((min(shares), max(shares)))
    return found


def test_crop_views__areas_are_those_given_or_published():
    slack = 0.04  # crops have whole pixels
    published = areas("dino", [Crops(2, 8), Crops(1, 8)]) + areas("alike", [Crops(2, 8), Crops(1, 8)])
    ranges = [(0.4, 1.0), (0.4, 1.0), (0.05, 0.4), (0.3, 1.0), (0.05, 0.3)]
    for found, (low, high) in zip(published, ranges, strict=True):
        assert low - slack <= found[0] < low + 0.1
        assert high - 0.1 < found[1] <= high + slack
    given = areas("deit", [Crops(2, 8, (0.6, 0.7)), Crops(1, 8, (0.1, 0.2))])
    assert all(0.6 - slack <= v <= 0.7 + slack for v in given[0])
    assert all(0.1 - slack <= v <= 0.2 + slack for v in given[1])
    assert areas("deit", [Crops(1, 8)])[0][0] < 0.2


def test_crop_views__only_the_first_global_crop_is_always_blurred(no_grey, monkeypatch):
    blurred: list[int] = []
    monkeypatch.setattr(ImageFilter.GaussianBlur, "filter", lambda self, image: blurred.append(1) or image)
    counts = []
    with seeded(2):
        for transform, count in build_crop_transforms("dino", [Crops(3, 8), Crops(2, 8)], PLAIN):
            blurred.clear()
            for _ in range(200):
                transform(noise(16))
            counts.append((count, len(blurred)))
    assert [count for count, _ in counts] == [1, 2, 2]
    assert counts[0][1] == 200
    assert 5 < counts[1][1] < 40
    assert 70 < counts[2][1] < 130


def test_crop_views__of_lejepa_change_all_crops_alike():
    """LeJEPA's sheet, the README's setting: flip 0.5, colours 0.8, grey 0.2, blur 0.5, solarise 0.2, for every view."""
    views = build_crop_transforms("alike", [Crops(2, 16), Crops(6, 8)], PLAIN)
    assert [count for _, count in views] == [2, 6]
    assert [transform._probs for transform, _ in views] == [(0.5, 0.8, 0.2, 0.5, 0.2)] * 2
    assert multi_crop.JITTER == (0.4, 0.4, 0.2, 0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": []}, "no global crop"),
        ({"groups": [Crops(0, 8), Crops(4, 8)]}, "no global crop"),
        ({"groups": [Crops(2, 0)]}, "at least 1 x 1 pixel"),
        ({"groups": [Crops(2, 8, (0.5, 0.2))]}, r"\(0.5, 0.2\); expected the minimum and the maximum fraction"),
        ({"pipeline": "moco"}, "'moco'; expected dino, alike or deit"),
        ({"blur": (2.0, 0.1)}, r"blur is \(2.0, 0.1\)"),
        ({"hflip": 1.5}, "hflip is 1.5"),
        ({"jitter_prob": -0.1}, "jitter_prob is -0.1"),
    ],
)
def test_crop_views__refuses_what_makes_no_sense(changes, message):
    arguments = {"pipeline": "dino", "groups": [Crops(2, 8)], "normalisation": PLAIN, **changes}
    with pytest.raises(UserError, match=message):
        build_crop_transforms(**arguments)


@pytest.mark.parametrize("pipeline", ["dino", "deit"])
@pytest.mark.parametrize("resize", ["letterbox", "squash"])
def test_crop_views__of_a_fitted_image_know_where_they_come_from(pipeline, resize, no_grey):
    groups = [Crops(1, (48, 64), WHOLE), Crops(1, 48, WHOLE)]
    views = build_crop_transforms(pipeline, groups, PLAIN, (48, 64), BLURLESS, 0.0, 0.0, resize)
    if pipeline == "deit":
        for transform, _ in views:
            transform.keywords["transform"]._rand_augment = None
    source = coordinates(60, 160)
    for transform, _ in views:
        with seeded(0):
            view, theta = transform(source)
        grid = torch.nn.functional.affine_grid(theta[None], [1, 3, *view.shape[1:]], align_corners=False)[0]
        inside = (grid.abs() < 0.8).all(-1)
        shown = view[:2].permute(1, 2, 0) * 2 - 1
        assert (grid - shown)[inside].abs().max() < 0.06
        bars = grid[..., 0].abs() > 1.25
        assert bool(bars.any()) == (resize == "letterbox")  # 60 x 160 in 64 x 48: bars on the left and on the right
        assert not view[:, bars].any()
