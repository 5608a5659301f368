"""Some thousands of images in shards that are read as they come: what the slow test shows of a million."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.shards.made_sets import Numbered, number_of, numbered
from paucal.data.dataset import ViewDataset
from paucal.data.decode import DecodeOptions, UnreadableImage
from paucal.data.decoded.prepare import prepare_images
from paucal.data.images import ImageSet
from paucal.data.loader import make_eval_loader, make_train_loader
from paucal.data.sampler import StepSampler
from paucal.data.shards import stream as stream_module
from paucal.data.shards.tar import TarStore
from paucal.data.shards.writing import ShardFormat, write_shards
from paucal.data.sources.opening import open_images
from paucal.data.sources.parquet_store import ParquetStore
from paucal.data.splits.split import make_split
from paucal.data.splits.split_csv import read_split, write_split
from paucal.data.views.normalisation import compute_normalisation
from paucal.types import Batch, UserError

COUNT = 1200
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Callable[[ShardFormat], Path]:
    made: dict[str, Path] = {}

    def make(form: ShardFormat) -> Path:
        if form not in made:
            made[form] = tmp_path_factory.mktemp(form)
            write_shards(numbered(COUNT), made[form], form, max_images=150)
        return made[form]

    return make


@pytest.fixture(params=["tar", "parquet"])
def images(request, folders, monkeypatch) -> ImageSet:
    """A set that is read as it comes, although it is small."""
    monkeypatch.setattr(stream_module, "STREAMED_IMAGES", 400)
    monkeypatch.setattr(stream_module, "MIN_WINDOW", 100)
    monkeypatch.setattr(stream_module, "BLOCK_IMAGES", 64)
    monkeypatch.setattr(stream_module, "WINDOW_BYTES", 1)
    return prepare_images(open_images(folders(request.param)), DecodeOptions(side=64))[0]


class Which:
    """A view that is the number of the image."""

    def __call__(self, image: Image.Image) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([number_of(image)]), torch.zeros(4)


def batches(
    images: ImageSet, start: int = 0, workers: int = 0, rank: int = 0, world: int = 1, steps: int = 24, size: int = 50
) -> list[Batch]:
    indices = np.arange(len(images))
    assert images.stream is not None
    sampler = StepSampler(indices, size, steps, 3, start=start, rank=rank, world_size=world, stream=images.stream)
    return list(make_train_loader(ViewDataset(images, [(Which(), 1)], 3), sampler, workers))  # type: ignore[arg-type]


def shown(found: list[Batch]) -> list[int]:
    return [int(number) for batch in found for number in batch.views[0].flatten()]


def test_streamed__an_epoch_shows_each_image_once_with_its_label(images):
    found = batches(images)
    assert sorted(shown(found)) == list(range(COUNT))
    labels = [int(label) for batch in found for label in batch.labels]  # type: ignore[union-attr]
    assert labels == [number % 3 for number in shown(found)]


@pytest.mark.parametrize(("start", "workers"), [(0, 2), (7, 0), (16, 2), (24, 0)])
def test_streamed__resumed_equals_uninterrupted_with_any_workers(images, start, workers):
    whole = shown(batches(images, steps=28))
    assert shown(batches(images, start=start, workers=workers, steps=28)) == whole[start * 50 :]


def test_streamed__two_processes_show_each_image_once(images):
    one, other = (shown(batches(images, rank=rank, world=2, steps=12)) for rank in (0, 1))
    assert sorted(one + other) == list(range(COUNT))
    steps = [one[first : first + 50] + other[first : first + 50] for first in range(0, 600, 50)]
    assert [number for step in steps for number in step] == shown(batches(images, steps=12, size=100))


def test_streamed__nothing_is_read_before_the_first_step_but_a_sample(folders, monkeypatch):
    monkeypatch.setattr(stream_module, "STREAMED_IMAGES", 400)
    read: set[int] = set()
    for kind in (TarStore, ParquetStore):
        source = kind.source
        monkeypatch.setattr(kind, "source", lambda self, n, source=source: (read.add(n), source(self, n))[1])
    for form in ("tar", "parquet"):
        read.clear()
        images, _ = prepare_images(open_images(folders(form)), DecodeOptions(side=64))
        split = make_split(images)
        first = compute_normalisation(images, split.indices("train"), 100)
        assert len(read) < 300
        assert first == compute_normalisation(images, split.indices("train"), 100)
        assert images.notes[0].startswith("1200 images in 8 shards are streamed")


def test_streamed__small_sets_are_decoded_once_as_any_other(folders):
    images, _ = prepare_images(open_images(folders("tar")), DecodeOptions(side=64))
    assert images.stream is None
    assert not images.notes


def test_streamed__memory_is_that_of_a_few_arrays(images):
    sampler = StepSampler(np.arange(COUNT), 50, 10**6, 3, stream=images.stream)
    steps = iter(sampler)
    next(steps)
    tracemalloc.start()
    for _ in range(80):  # three epochs
        next(steps)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150 * COUNT  # a list of keys takes twice that


class Damaged(Numbered):
    """A set of which one image cannot be read."""

    def source(self, index: int) -> bytes:
        return b"P6 4 4 255\n" if index == 620 else super().source(index)


def test_streamed__a_bad_image_is_named_when_its_turn_comes_or_left_out(folders, monkeypatch):
    monkeypatch.setattr(stream_module, "STREAMED_IMAGES", 400)
    opened = open_images(folders("tar"))
    read = TarStore.source
    bad = int(np.setdiff1d(np.arange(COUNT), opened.sample(256))[400])  # is not found before its turn
    number = number_of(opened.store.read(bad))
    monkeypatch.setattr(TarStore, "source", lambda self, n: b"P6 4 4 255\n" if n == bad else read(self, n))
    images, _ = prepare_images(opened, DecodeOptions(side=64))
    for workers in (0, 2):
        with pytest.raises(UnreadableImage) as problem:
            batches(images, workers=workers)
        assert str(problem.value).startswith(f"image {opened.keys[bad]} cannot be decoded")
    left, names = prepare_images(opened, DecodeOptions(side=64), on_bad="skip")
    assert names == [opened.keys[bad]]
    assert left.stream is not None
    numbers = shown(batches(left, steps=23))
    assert len(set(numbers)) == len(numbers) == 23 * 50
    assert number not in numbers
    monkeypatch.setattr(TarStore, "source", lambda self, n: b"P6 4 4 255\n")
    with pytest.raises(UserError, match="256 of 256 images that were tested cannot be read"):
        prepare_images(opened, DecodeOptions(side=64))


def test_written__images_that_cannot_be_read_are_refused_or_left_out(tmp_path):
    images = replace(numbered(700), store=Damaged(700))
    with pytest.raises(UserError, match=r"made/620\.ppm"):
        write_shards(images, tmp_path)
    (tmp_path / "skip").mkdir()
    assert write_shards(images, tmp_path / "skip", on_bad="skip")[1] == ["made/620.ppm"]
    assert len(open_images(tmp_path / "skip")) == 699


def test_streamed__split_is_stored_and_read_back_without_a_table_of_text(images, tmp_path):
    split = make_split(images, seed=4)
    write_split(tmp_path / "split.csv", images, split)
    tracemalloc.start()
    again = read_split(tmp_path / "split.csv", images)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (again.parts == split.parts).all()
    assert peak < 200 * COUNT + 2**17  # rows as text take five times that
    counts = [np.bincount(images.labels[split.indices(part)]).tolist() for part in ("train", "val", "test")]
    assert counts == [[280] * 3, [40] * 3, [80] * 3]


def test_streamed__evaluation_reads_every_image_once_in_order(images):
    loader = make_eval_loader(images, np.arange(0, COUNT, 7), Which(), 64, rank=1, world_size=2)  # type: ignore[arg-type]
    ids = [int(number) for batch in loader for number in batch.ids]  # type: ignore[attr-defined]
    assert ids == list(range(7, COUNT, 14))
    assert len(loader) == -(-len(ids) // 64)
