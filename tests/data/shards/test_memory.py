"""What a process keeps in memory for each image of a streamed set."""

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa

from paucal.data.sampler import StepSampler
from paucal.data.shards import index as index_module
from paucal.data.shards import stream as stream_module
from paucal.data.shards.folders import LocalShardFolder
from paucal.data.shards.index import HEADER_BYTES, INDEX_NAME, Shard, ShardIndex, spans_from_counts
from paucal.data.shards.opening import open_shards
from paucal.data.sources.source import SourceOptions
from paucal.data.splits.split import make_split
from paucal.data.string_arrays import StringArray
from processes import exit_codes

EACH, LENGTH = 1000, 1024


def make_index(folder: Path, count: int) -> None:
    """Write an index of shards of the right size, without images."""
    folder.mkdir()
    files, numbers = [], np.arange(count)
    for number in range(count // EACH):
        path = folder / f"train-{number:06d}.tar"
        path.touch()
        os.truncate(path, EACH * (HEADER_BYTES + LENGTH))
        files.append(Shard(path.name, path.stat().st_size, "train", path.stat().st_mtime_ns))
    ShardIndex(
        files=tuple(files),
        classes=tuple("0123456789"),
        spans=spans_from_counts([EACH] * len(files)),
        labels=(numbers % 10).astype(np.int8),
        offsets=numbers % EACH * (HEADER_BYTES + LENGTH) + HEADER_BYTES,
        lengths=np.full(count, LENGTH, dtype=np.int32),
        names=StringArray.from_strings(f"{number:08d}.jpg" for number in numbers),
    ).write(folder / INDEX_NAME)


def start(folder: Path) -> list[object]:
    """Do what a run does until its first step, and return what it keeps."""
    images = open_shards(LocalShardFolder(folder), SourceOptions(labelled=True))
    split = make_split(images)
    train = split.indices("train")
    assert images.stream is not None
    steps = iter(StepSampler(train, 100, len(train) // 100, seed=0, stream=images.stream.take(train)))
    assert len(next(steps)) == 100
    assert images.keys[len(images) - 1] == f"train-{len(images) // EACH - 1:06d}.tar/{len(images) - 1:08d}.jpg"
    return [images, split, train, steps]


def kept_bytes(folder: Path) -> list[int]:
    """Return the bytes that are kept for 10,000 images and for 110,000."""
    stream_module.STREAMED_IMAGES, stream_module.MAX_WINDOW, index_module.MAX_CACHED_ROWS = 1, 1000, 5 * EACH
    make_index(folder / "few", 10 * EACH)
    make_index(folder / "many", 110 * EACH)
    kept = []
    for name in ("few", "few", "many"):  # the first one imports modules
        arrow = pa.total_allocated_bytes()
        tracemalloc.start()
        held = start(folder / name)
        kept.append(tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - arrow)
        tracemalloc.stop()
        del held
    return kept[1:]


def measure(number: int, folder: Path) -> None:
    (folder / "kept.json").write_text(json.dumps(kept_bytes(folder)))


def test_memory__of_100_000_images_is_a_few_bytes_each(tmp_path):
    # In a process of its own, since threads of other tests allocate memory too.
    assert exit_codes(measure, tmp_path) == [0]
    few, many = json.loads((tmp_path / "kept.json").read_text())
    assert (many - few) / (100 * EACH) < 12  # 8 of them are the positions of the training images
