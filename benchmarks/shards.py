"""A million small images in tar shards: start, memory, images per second, and resuming in the middle of an epoch.

The shards are made of 10,000 real images: `paucal shard` writes one shard of them, which is copied a hundred times
under other names, and the index is made to name all copies, so that the disk and the index are those of a million
images while the making takes a minute. Everything else is what a run does. The same is done for 10,000 images first;
"bytes_per_image" is by how much the largest resident size of the process grew beyond that with a million.

    python benchmarks/shards.py ../shared/data/cifar10/train.parquet --images 1000000 --workers 2
"""

import argparse
import resource
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from measuring import store, surroundings
from paucal.data.dataset import ViewDataset
from paucal.data.decode import DecodeOptions
from paucal.data.decoded.prepare import prepare_images
from paucal.data.images import ImageSet
from paucal.data.loader import make_train_loader
from paucal.data.sampler import StepSampler
from paucal.data.shards import stream as streams
from paucal.data.shards.folders import LocalShardFolder
from paucal.data.shards.index import INDEX_NAME, ShardIndex, read_index, spans_from_counts
from paucal.data.shards.opening import open_shards
from paucal.data.shards.tar import index_tar
from paucal.data.shards.writing import write_shards
from paucal.data.sources.opening import open_images
from paucal.data.sources.source import SourceOptions
from paucal.data.splits.split import make_split
from paucal.data.splits.split_csv import read_split, write_split
from paucal.data.string_arrays import StringArray
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.normalisation import compute_normalisation
from paucal.data.views.transforms import TrainTransform

EACH = 10_000
BATCH = 250
SIDE = 32


def make(images: ImageSet, count: int, folder: Path) -> dict[str, float]:
    """Write shards of `count` images, and return what that and looking one through took."""
    begin = time.perf_counter()
    write_shards(images, folder, max_images=EACH, max_bytes=1 << 40)
    written = time.perf_counter() - begin
    first = folder / "shard-000000.tar"
    begin = time.perf_counter()
    index_tar(first, first.name)
    looked = time.perf_counter() - begin
    one = read_index(folder / INDEX_NAME, INDEX_NAME)
    copies = [f"shard-{number:06d}.tar" for number in range(count // EACH)]
    for name in copies[1:]:
        shutil.copy2(first, folder / name)
    many(one, copies).write(folder / INDEX_NAME)
    return {"written_per_second": EACH / written, "looked_through_per_second": EACH / looked}


def many(one: ShardIndex, names: list[str]) -> ShardIndex:
    """Return the index of several copies of one shard."""
    count = len(names)
    return replace(
        one,
        files=tuple(replace(one.files[0], name=name) for name in names),
        spans=spans_from_counts([len(one)] * count),
        offsets=np.tile(one.offsets[:], count),
        lengths=np.tile(one.lengths[:], count),
        labels=np.tile(one.labels, count),
        names=StringArray.concatenate([one.names[:]] * count),
    )


def run(folder: Path, workers: int, read_images: int) -> dict[str, Any]:
    """Do what a run does until its first batch, keep reading, and resume in the middle as if it had been stopped."""
    begin = time.perf_counter()
    images, _ = prepare_images(open_shards(LocalShardFolder(folder), SourceOptions()), DecodeOptions(side=64))
    opened = time.perf_counter() - begin
    split = make_split(images)
    train = split.indices("train")
    normalisation = compute_normalisation(images, train)
    told = time.perf_counter() - begin
    write_split(folder / "split.csv", images, split)
    written = time.perf_counter() - begin
    dataset = ViewDataset(images, [(TrainTransform((SIDE, SIDE), Augmentation(), normalisation), 1)], 0)
    assert images.stream is not None
    per_epoch = len(train) // BATCH

    def loader(start: int) -> Any:
        sampler = StepSampler(train, BATCH, 2 * per_epoch, 0, start=start, stream=images.stream.take(train))  # type: ignore[union-attr]
        return iter(make_train_loader(dataset, sampler, workers))

    steps = loader(0)
    next(steps)
    first = time.perf_counter() - begin
    again = time.perf_counter()
    for _ in range(read_images // BATCH):
        next(steps)
    rate = read_images / (time.perf_counter() - again)
    del steps
    again = time.perf_counter()
    assert (read_split(folder / "split.csv", images).parts == split.parts).all()
    read = time.perf_counter() - again
    again = time.perf_counter()
    resumed = next(loader(per_epoch // 2 + 1))
    resume = time.perf_counter() - again
    middle = loader(per_epoch // 2)
    next(middle)
    assert (next(middle).views[0] == resumed.views[0]).all()
    return {
        "opened": opened,
        "split_and_moments": told - opened,
        "split_written": written - told,
        "first_batch": first,
        "images_per_second": rate,
        "split_read": read,
        "first_batch_in_the_middle": resume,
        "memory": megabytes(),
    }


def processes(folder: Path) -> dict[str, Any]:
    """Count how often two processes show each image of an epoch together."""
    images = open_shards(LocalShardFolder(folder), SourceOptions())
    assert images.stream is not None
    shown, begin = np.zeros(len(images), dtype=np.int64), time.perf_counter()
    for rank in range(2):
        steps = len(images) // (2 * BATCH)
        sampler = StepSampler(np.arange(len(images)), BATCH, steps, 0, rank=rank, world_size=2, stream=images.stream)
        for step in sampler:
            shown[[key.index for key in step]] += 1
    return {"least": int(shown.min()), "most": int(shown.max()), "seconds": time.perf_counter() - begin}


def megabytes() -> float:
    """Return the largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="digits")
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--temporary", default=None, help="folder for the shards, which are removed at the end")
    parser.add_argument("--read", type=int, default=20_000, help="images that the rate is measured on")
    given = parser.parse_args()
    streams.STREAMED_IMAGES = 1  # the few images that memory is compared with are read in the same way
    source = open_images(given.source)
    source = source.select(np.resize(np.arange(0, len(source), max(1, len(source) // EACH)), EACH))  # of all classes
    with tempfile.TemporaryDirectory(dir=given.temporary) as temporary:
        few, large = Path(temporary, "few"), Path(temporary, "many")
        few.mkdir()
        large.mkdir()
        made = make(source, given.images, large)
        shutil.copy2(large / "shard-000000.tar", few)
        shutil.copy2(large / "classes.txt", few)
        index = read_index(large / INDEX_NAME, INDEX_NAME)
        rows = {name: getattr(index, name)[:EACH] for name in ("offsets", "lengths", "labels", "names")}
        replace(index, files=index.files[:1], spans=spans_from_counts([EACH]), **rows).write(few / INDEX_NAME)
        small = run(few, given.workers, min(given.read, EACH // 4))
        found = run(large, given.workers, given.read)
        result = {
            "images": given.images,
            "shards": given.images // EACH,
            "bytes": sum(file.stat().st_size for file in large.glob("*.tar")),
            "index_bytes": (large / INDEX_NAME).stat().st_size,
            "workers": given.workers,
            "making": made,
            "run": found,
            "run_on_10_000": small,
            "bytes_per_image": (found["memory"] - small["memory"]) * 2**20 / (given.images - EACH),
            "two_processes": processes(large),
        }
    store("shards_cpu", {**result, **surroundings("cpu")})


if __name__ == "__main__":
    main()
