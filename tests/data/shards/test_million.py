"""A million tiny images: a hundred copies of a shard of ten thousand, with an index that names them all."""

import resource
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.shards.made_sets import number_of, numbered, shards_of
from data.shards.test_streamed import Which
from paucal.data.dataset import ViewDataset
from paucal.data.decode import DecodeOptions
from paucal.data.decoded.prepare import prepare_images
from paucal.data.images import ImageSet
from paucal.data.loader import make_train_loader
from paucal.data.sampler import StepSampler
from paucal.data.shards.index import INDEX_NAME, read_index, spans_from_counts
from paucal.data.shards.writing import write_shards
from paucal.data.sources.opening import open_images
from paucal.data.splits.split import make_split
from paucal.data.splits.split_csv import read_split, write_split
from paucal.data.string_arrays import StringArray
from paucal.data.views.normalisation import compute_normalisation

pytestmark = pytest.mark.slow
EACH, SHARDS = 10_000, 100
COUNT = EACH * SHARDS


@pytest.fixture(scope="module")
def million(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("million")
    write_shards(numbered(EACH), folder)
    one = read_index(folder / INDEX_NAME, INDEX_NAME)
    names = [f"shard-{number:06d}.tar" for number in range(SHARDS)]
    for name in names[1:]:
        shutil.copy2(folder / names[0], folder / name)
    replace(
        one,
        files=tuple(replace(one.files[0], name=name) for name in names),
        spans=spans_from_counts([EACH] * SHARDS),
        names=StringArray.concatenate([one.names[:]] * SHARDS),
        **{name: np.tile(getattr(one, name)[:], SHARDS) for name in ("offsets", "lengths", "labels")},
    ).write(folder / INDEX_NAME)
    return folder


@pytest.fixture(scope="module")
def images(million) -> ImageSet:
    return prepare_images(open_images(million), DecodeOptions(side=64))[0]


def sampler(images: ImageSet, **options) -> StepSampler:
    options = {"batch_size": 250, "steps": COUNT // 250, "seed": 3, **options}
    return StepSampler(np.arange(COUNT), stream=images.stream, **options)


def shown(images: ImageSet, steps: int, **options) -> list[int]:
    dataset = ViewDataset(images, [(Which(), 1)], 3)  # type: ignore[arg-type]
    loader = iter(make_train_loader(dataset, sampler(images, **options)))
    found = [next(loader) for _ in range(steps)]
    assert all(int(batch.labels[0]) == int(batch.views[0][0]) % 3 for batch in found)  # type: ignore[attr-defined]
    return [int(number) for batch in found for number in batch.ids]  # type: ignore[attr-defined]


def test_million__starts_without_reading_more_than_samples_and_in_little_memory(million, tmp_path):
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    images, _ = prepare_images(open_images(million), DecodeOptions(side=64))
    split = make_split(images)
    compute_normalisation(images, split.indices("train"))
    next(iter(sampler(images)))
    seconds = time.process_time() - begin
    write_split(tmp_path / "split.csv", images, split)
    assert (read_split(tmp_path / "split.csv", images).parts == split.parts).all()
    merge_grids = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert (len(images), images.has_single_labels) == (COUNT, True)
    assert seconds < 20  # of processor time; decoding all of them takes minutes
    assert merge_grids < 250 * COUNT


def test_million__two_processes_show_each_image_once_in_an_epoch(images):
    counts = np.zeros(COUNT, dtype=np.int64)
    for rank in range(2):
        for step in sampler(images, rank=rank, world_size=2, steps=COUNT // 500):
            counts[[key.index for key in step]] += 1
    assert (counts == 1).all()


@pytest.mark.parametrize("start", [1, 2345, 3998])
def test_million__goes_on_anywhere_as_if_it_had_not_stopped(images, start):
    whole = [key.index for step in list(sampler(images))[start : start + 2] for key in step]
    assert shown(images, 2, start=start) == whole


def test_million__reads_the_images_that_are_wanted_from_few_shards(images):
    assert images.stream is not None
    ids = shown(images, 40)
    assert (
        len(set(shards_of(images.stream, np.asarray(ids)).tolist())) <= 8
    )  # a window of 65,536 spans seven or eight shards
    for position in ids[:200]:
        assert number_of(images.store.read(position)) % 3 == images.labels[position]
