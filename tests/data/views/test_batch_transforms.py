"""Batches of small images made at once are those that are made one by one, to the last bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from paucal.data.dataset import SampleKey, ViewDataset
from paucal.data.decode import DecodeOptions
from paucal.data.decoded import cache_folder as folder
from paucal.data.decoded.in_memory import InMemoryStore
from paucal.data.decoded.on_disk import MappedStore
from paucal.data.decoded.prepare import prepare_images
from paucal.data.sources.opening import open_images
from paucal.data.stores import RgbStore
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import EvalTransform, TrainTransform

SIDE, COUNT = 32, 8
SHIFTED = Augmentation(crop="padded", padding=4, rand_augment=None, erase_prob=0.0)
KEYS = [SampleKey(epoch, index, repeat) for epoch in (0, 3) for index in (5, 0, 7) for repeat in (0, 1)]
TRAIN, WHOLE = TrainTransform((SIDE, SIDE), SHIFTED, Normalisation()), EvalTransform((SIDE, SIDE), Normalisation(), 1.0)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of small pictures of noise, and a cache of its own."""
    monkeypatch.setenv(folder.CACHE_VARIABLE, str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    for number in range(COUNT):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def no_single(monkeypatch):
    """Let nothing be made one by one."""
    monkeypatch.setattr(ViewDataset, "_make_sample", lambda *_: pytest.fail("an image was treated by itself"))


def one_by_one(dataset, keys):
    return [dataset._make_sample(key) for key in keys]


def assert_same(samples, others):
    for sample, other in zip(samples, others, strict=True):
        assert (sample.id, sample.label) == (other.id, other.label)
        assert torch.equal(sample.views[0], other.views[0])
        assert torch.equal(sample.geometry[0], other.geometry[0])


@pytest.mark.parametrize("transform", [TRAIN, WHOLE], ids=["train", "eval"])
@pytest.mark.parametrize("kind", [MappedStore, InMemoryStore])
def test_at_once__equals_one_by_one(photos, monkeypatch, transform, kind):
    if kind is InMemoryStore:
        monkeypatch.setenv(folder.CACHE_VARIABLE, "off")
    images, _ = prepare_images(open_images(photos), DecodeOptions(side=64))
    assert isinstance(images.store, kind)
    dataset = ViewDataset(images, [(transform, 1)], seed=4, with_geometry=True)
    expected = one_by_one(dataset, KEYS)
    assert len({view.views[0].numpy().tobytes() for view in expected}) > (6 if transform is TRAIN else 2)
    monkeypatch.setattr(ViewDataset, "_make_sample", lambda *_: pytest.fail("an image was treated by itself"))
    assert_same(dataset.__getitems__(KEYS), expected)
    assert_same([dataset[key] for key in KEYS], expected)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_at_once__of_any_number_of_channels_and_of_selections(tmp_path, monkeypatch, channels):
    monkeypatch.setenv(folder.CACHE_VARIABLE, str(tmp_path / "cache"))
    for name in "ab":
        (tmp_path / "tiles" / name).mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = generator.integers(0, 255, (24, SIDE, channels), dtype=np.uint8)
        np.save(tmp_path / "tiles" / "ab"[number % 2] / f"{number}", pixels)
    moments = Normalisation((0.2, 0.3, 0.4, 0.5, 0.6)[:channels], (0.1, 0.2, 0.3, 0.4, 0.5)[:channels])
    images, _ = prepare_images(open_images(tmp_path / "tiles"), DecodeOptions(channels=channels))
    assert images.store.read(0).size == (SIDE, 24)
    images = images.select(np.asarray([7, 2, 1, 0, 3, 4, 5, 6]))
    dataset = ViewDataset(
        images, [(TrainTransform((24, SIDE), SHIFTED, moments), 1)], seed=1, with_labels=False, with_geometry=True
    )
    expected = one_by_one(dataset, KEYS)
    monkeypatch.setattr(ViewDataset, "_make_sample", lambda *_: pytest.fail("an image was treated by itself"))
    assert_same(dataset.__getitems__(KEYS), expected)


def test_at_once__leaves_the_generators_alone(photos, no_single):
    images, _ = prepare_images(open_images(photos), DecodeOptions(side=64))
    torch.manual_seed(3)
    before = torch.default_generator.get_state()
    ViewDataset(images, [(TRAIN, 1)], seed=4).__getitems__(KEYS)
    assert torch.equal(torch.default_generator.get_state(), before)


@pytest.mark.parametrize(
    "transform",
    [
        TrainTransform((SIDE, SIDE), replace(SHIFTED, rand_augment="rand-m9-mstd0.5-inc1"), Normalisation()),
        TrainTransform((SIDE, SIDE), replace(SHIFTED, erase_prob=0.2), Normalisation()),
        TrainTransform((SIDE, SIDE), replace(SHIFTED, crop="random-resized"), Normalisation()),
        TrainTransform((SIDE, SIDE), SHIFTED, Normalisation(), exact_geometry=True),
        TrainTransform((SIDE - 4, SIDE), SHIFTED, Normalisation()),
        EvalTransform((SIDE, SIDE), Normalisation()),
        EvalTransform((SIDE, SIDE - 2), Normalisation(), 1.0),
    ],
)
def test_at_once__is_not_for_what_needs_more(photos, transform):
    images, _ = prepare_images(open_images(photos), DecodeOptions(side=64))
    dataset = ViewDataset(images, [(transform, 1)], seed=4, with_geometry=True)
    assert dataset._batched_samples(KEYS) is None
    assert len(dataset.__getitems__(KEYS)) == len(KEYS)


def test_at_once__is_not_for_sets_that_have_one_other_image(photos):
    Image.new("RGB", (SIDE + 1, SIDE)).save(photos / "a" / "0.png")
    images, _ = prepare_images(open_images(photos), DecodeOptions(side=64))
    dataset = ViewDataset(images, [(TRAIN, 1)], seed=4)
    assert dataset._batched_samples([SampleKey(0, 1), SampleKey(0, 0)]) is None
    assert dataset._batched_samples([SampleKey(0, 1)]) is not None


def test_at_once__asks_stores_that_change_what_they_hand_over(photos):
    images, _ = prepare_images(open_images(photos), DecodeOptions(side=64))
    shown = replace(images, store=RgbStore(images.store))
    assert ViewDataset(shown, [(TRAIN, 1)], seed=4)._batched_samples(KEYS) is None
