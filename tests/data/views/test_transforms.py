import tracemalloc

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image, ImageFilter

from data.seeding import seeded
from paucal.data.images import ImageSet
from paucal.data.views.augmentation import Augmentation, build_rand_augment
from paucal.data.views.normalisation import Normalisation, compute_normalisation
from paucal.data.views.transforms import EvalTransform, TrainTransform, crop_geometry
from paucal.types import UserError

PLAIN = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
NO_COLOUR = {"rand_augment": None, "erase_prob": 0.0}


def _gradient(width: int, height: int) -> Image.Image:
    """Red is the normalised x of the pixel's centre, green its y, both from -1 to 1 over the grey range."""
    x = (np.arange(width) + 0.5) / width * 255
    y = (np.arange(height) + 0.5) / height * 255
    pixels = np.zeros((height, width, 3))
    pixels[..., 0], pixels[..., 1] = x[None, :], y[:, None]
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


def _geometry_error(view: torch.Tensor, theta: torch.Tensor, margin: int = 3) -> float:
    """The largest distance, in normalised source units, from what a pixel shows to where theta says."""
    _, height, width = view.shape
    grid = torch.nn.functional.affine_grid(theta[None], [1, 3, height, width], align_corners=False)[0]
    shown = view[:2].permute(1, 2, 0) * 2 - 1
    inside = (grid.abs() < 0.97).all(dim=-1)
    inside[:margin], inside[-margin:], inside[:, :margin], inside[:, -margin:] = False, False, False, False
    assert inside.float().mean() > 0.3
    return (grid - shown)[inside].abs().max().item()


@pytest.mark.parametrize("crop", ["random-resized", "padded", "none"])
@pytest.mark.parametrize("source", [(160, 120), (90, 200), (64, 64)])
def test_train_transform__geometry_points_to_what_the_view_shows(crop, source):
    augmentation = Augmentation(crop=crop, scale=(0.2, 1.0), padding=12, **NO_COLOUR)
    transform = TrainTransform((48, 64), augmentation, PLAIN, exact_geometry=True)
    image, flips = _gradient(*source), set()
    for seed in range(12):
        with seeded(seed):
            view, theta = transform(image)
        assert view.shape == (3, 48, 64)
        assert view.dtype == torch.float32
        assert _geometry_error(view, theta) < 0.04  # three pixels of 160 are 0.0375
        flips.add(bool(theta[0, 0] < 0))
    assert flips == {True, False}


def test_train_transform__is_a_function_of_the_seed():
    transform = TrainTransform((32, 32), Augmentation(), Normalisation())
    image = _gradient(50, 40)
    views = []
    for seed in (1, 1, 2):
        with seeded(seed):
            views.append(transform(image)[0])
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])


def test_train_transform__crops_stay_in_the_scale_range():
    transform = TrainTransform((16, 16), Augmentation(scale=(0.3, 0.5), **NO_COLOUR), PLAIN)
    areas = []
    for seed in range(50):
        with seeded(seed):
            theta = transform(_gradient(80, 80))[1]
        areas.append(abs(theta[0, 0] * theta[1, 1]).item())
    assert 0.28 < min(areas) < 0.36
    assert 0.44 < max(areas) < 0.52


def test_train_transform__padded_crop_is_the_cifar_custom():
    image = Image.fromarray(np.random.default_rng(0).integers(1, 255, (32, 32, 3), dtype=np.uint8))
    augmentation = Augmentation(crop="padded", padding=4, hflip=0.0, **NO_COLOUR)
    padded = np.pad(np.asarray(image), ((4, 4), (4, 4), (0, 0)))
    windows = {padded[y : y + 32, x : x + 32].tobytes() for y in range(9) for x in range(9)}
    seen = set()
    for seed in range(30):
        with seeded(seed):
            view = TrainTransform((32, 32), augmentation, PLAIN)(image)[0]
        seen.add((view * 255).round().to(torch.uint8).permute(1, 2, 0).numpy().tobytes())
    assert seen <= windows
    assert len(seen) > 20


def test_train_transform__erases_with_noise_after_normalisation():
    augmentation = Augmentation(crop="none", hflip=0.0, rand_augment=None, erase_prob=1.0)
    with seeded(0):
        view, _ = TrainTransform((64, 64), augmentation, Normalisation())(Image.new("RGB", (64, 64), (124, 116, 104)))
    erased = view[view.abs() > 0.02]
    assert 0.015 < erased.numel() / view.numel() < 0.36
    assert 0.8 < erased.std() < 1.2


def test_rand_augment__is_timms():
    ours = build_rand_augment(Augmentation(), (224, 224), Normalisation())
    theirs = timm.data.create_transform(
        224, is_training=True, auto_augment="rand-m9-mstd0.5-inc1", interpolation="bicubic"
    )
    assert ours is not None
    assert repr(ours) == repr(theirs.transforms[2])
    assert [op.kwargs for op in ours.ops] == [op.kwargs for op in theirs.transforms[2].ops]
    assert [op.hparams for op in ours.ops] == [op.hparams for op in theirs.transforms[2].ops]


def test_rand_augment__survives_the_largest_magnitude():
    policy = build_rand_augment(Augmentation(rand_augment="rand-m10-p1-n15-inc1"), (32, 32), PLAIN)
    assert policy is not None
    image = _gradient(32, 32)
    posterize = next(op for op in policy.ops if op.name == "PosterizeIncreasing")
    assert sorted(np.unique(np.asarray(posterize(image)))) == [0, 128]
    with seeded(0):
        for _ in range(20):
            assert policy(image).size == (32, 32)


def test_eval_transform__equals_timm():
    image = _gradient(301, 200).filter(ImageFilter.BLUR)
    theirs = timm.data.create_transform(
        224, interpolation="bicubic", crop_pct=224 / 256, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)
    )
    ours, theta = EvalTransform((224, 224), Normalisation((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))(image)
    assert torch.allclose(ours, theirs(image), atol=1e-5)
    assert theta[1].tolist() == pytest.approx([0.0, 0.875, 0.0])


@pytest.mark.parametrize(("size", "ratio"), [((32, 32), 1.0), ((40, 80), 0.8), ((80, 40), 0.875)])
@pytest.mark.parametrize("source", [(160, 120), (90, 200), (20, 20)])
def test_eval_transform__geometry_and_centre(size, ratio, source):
    view, theta = EvalTransform(size, PLAIN, ratio)(_gradient(*source))
    assert view.shape == (3, *size)
    assert _geometry_error(view, theta) < 0.06
    assert theta[:, 2].abs().max() < 0.06  # the centre, to a pixel
    assert max(theta[0, 0], theta[1, 1]).item() == pytest.approx(ratio, abs=0.03)


def test_normalisation__applies_the_formula_and_undoes_it():
    normalisation = Normalisation((0.5, 0.25, 0.0), (0.5, 0.25, 1.0))
    image = Image.new("RGB", (3, 2), (255, 0, 51))
    view = normalisation.apply(image)
    assert view.shape == (3, 2, 3)
    assert view.is_contiguous()
    assert view[:, 0, 0].tolist() == pytest.approx([1.0, -1.0, 0.2])
    assert torch.equal(normalisation.denormalise(view)[:, 1, 2], torch.tensor([255, 0, 51], dtype=torch.uint8))
    assert normalisation.denormalise(torch.full((2, 3, 4, 4), 99.0)).max() == 255


def test_compute_normalisation__equals_numpy(make_set):
    images = make_set([0, 1] * 50)  # image i is constant i
    normalisation = compute_normalisation(images, np.arange(100))
    assert normalisation.mean == pytest.approx([np.arange(100).mean() / 255] * 3)
    assert normalisation.std == pytest.approx([np.arange(100).std() / 255] * 3)


def test_compute_normalisation__looks_at_chosen_images_only(make_set):
    images = make_set([0, 1] * 50)
    assert compute_normalisation(images, np.asarray([51])).mean == pytest.approx([0.2] * 3)
    assert compute_normalisation(images, np.asarray([51])).std == (0.01, 0.01, 0.01)  # a constant image
    spread = compute_normalisation(images, np.arange(100), max_images=4)
    assert spread.mean[0] == pytest.approx(np.mean([0, 25, 50, 75]) / 255)
    with pytest.raises(ValueError, match="no images"):
        compute_normalisation(images, np.asarray([], dtype=np.int64))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": "centre"}, "crop is 'centre'; expected one of random-resized, padded, none"),
        ({"interpolation": "cubic"}, "interpolation is 'cubic'"),
        ({"scale": (0.0, 1.0)}, r"scale is \(0\.0, 1\.0\); expected a minimum and a maximum, above 0 and at most 1"),
        ({"ratio": (2.0, 1.0)}, "ratio is"),
        ({"padding": -1}, "padding is -1; expected 0 or more"),
        ({"hflip": 1.5}, "hflip is 1.5; expected a probability"),
        ({"erase_prob": -0.5}, "erase_prob is -0.5; expected a probability"),
    ],
)
def test_augmentation__says_what_is_wrong(settings, message):
    with pytest.raises(UserError, match=message):
        Augmentation(**settings)


@pytest.mark.parametrize("description", ["augmix-m5", "rand-q3", "", "rand-m9.5"])
def test_rand_augment__refuses_what_timm_does_not_know(description):
    words = f"rand_augment is '{description}', but '[^']*' is not valid; expected a description such as"
    with pytest.raises(UserError, match=words):
        TrainTransform((8, 8), Augmentation(rand_augment=description), PLAIN)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("rand-x", "'x' is not valid"),
        ("rand-m9-", "'' is not valid"),
        ("rand-m9.5", "'m9.5' is not valid"),
        ("rand-m9-m5", "'m5' is not valid"),
        ("rand-tfoo", "'tfoo' is not valid"),
        ("rand-m99", "in which m is 99; expected a number from 0 to 10,"),
        ("rand-m21-mmax20", "in which m is 21; expected a number from 0 to 20,"),
        ("rand-m9-n99999999999", r"in which n is 1e\+11; expected a number from 1 to 15,"),
        ("rand-m9-p7", "in which p is 7; expected a number from 0 to 1,"),
    ],
)
def test_rand_augment__refuses_what_timm_would_leave_out_or_cut_off(description, message):
    with pytest.raises(UserError, match=f"rand_augment is '{description}'.*{message}"):
        TrainTransform((8, 8), Augmentation(rand_augment=description), PLAIN)


@pytest.mark.parametrize(
    "description", ["rand", "rand-m9-n3-mstd0.5-inc1", "rand-m15-mmax20-p0.5", "rand-mstd1-tweights"]
)
def test_rand_augment__takes_timms_own_examples(description):
    assert build_rand_augment(Augmentation(rand_augment=description), (8, 8), PLAIN) is not None


def test_transforms__refuse_senseless_sizes():
    with pytest.raises(UserError, match=r"image size is \(0, 8\)"):
        TrainTransform((0, 8), Augmentation(), PLAIN)
    with pytest.raises(UserError, match=r"crop_ratio is 1\.2"):
        EvalTransform((8, 8), PLAIN, 1.2)


def test_compute_normalisation__takes_little_memory_for_a_large_image():
    class OneLarge:
        def read(self, index):
            return Image.new("RGB", (5000, 5000), (10, 20, 30))  # 75 MB as bytes, 1.8 GB as three copies of doubles

        def __len__(self):
            return 1

    images = ImageSet("large", "", ("one",), ["0"], np.zeros(1, np.int64), [""], OneLarge())
    tracemalloc.start()
    try:
        found = compute_normalisation(images, np.arange(1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.mean == pytest.approx([10 / 255, 20 / 255, 30 / 255])
    assert found.std == (0.01, 0.01, 0.01)
    assert peak < 20 << 20


def test_crop_geometry__of_the_left_half():
    assert crop_geometry((0, 0, 10, 20), (20, 20)).tolist() == [[0.5, 0, -0.5], [0, 1, 0]]
