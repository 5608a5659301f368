"""Loaders of images on object storage that resume from a saved state, as the documentation of each says."""

import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scale_storage import BUCKET

BATCH = 128  # images of a step, over all processes
BUFFER = 1000  # images in a shuffle buffer


def decoded(content: bytes) -> np.ndarray:
    """Return the pixels of an encoded image."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


class Reader:
    """The batches of one process; `state` is what is saved, as the documentation of the loader says."""

    def __init__(
        self, folder: Path, rank: int, world: int, port: int, count: int, states: list[Any] | None, step: int
    ) -> None:
        self.folder = folder
        self.rank, self.world, self.port, self.count, self.step = rank, world, port, count, step
        self.size = BATCH // world
        self.saved = None if states is None else states[min(rank, len(states) - 1)]
        self.url = f"http://127.0.0.1:{port}"
        self.open()

    def open(self) -> None:
        """Open the images."""

    def state(self) -> Any:
        """Return what is saved with a step."""

    def batches(self) -> Iterator[list[int]]:
        """Yield the images of each step, decoded."""
        raise NotImplementedError

    def grouped(self, samples: Iterator[tuple[int, bytes]]) -> Iterator[list[int]]:
        """Yield batches of decoded samples; an incomplete last one is dropped, as in training."""
        while len(batch := list(itertools.islice(samples, self.size))) == self.size:
            np.stack([decoded(content) for _, content in batch])
            yield [number for number, _ in batch]


class Paucal(Reader):
    """The loader of `paucal train`."""

    def open(self) -> None:
        """Open the shards by their index."""
        from paucal.data.shards import stream as streams
        from paucal.data.shards.folders import RemoteShardFolder
        from paucal.data.shards.opening import open_shards
        from paucal.data.sources.source import SourceOptions

        streams.STREAMED_IMAGES = 1  # a small set would be decoded before a run
        self.images = open_shards(RemoteShardFolder(f"s3://{BUCKET}/tar"), SourceOptions())

    def batches(self) -> Iterator[list[int]]:
        """Yield the images of each step from the current one on."""
        from paucal.data.sampler import StepSampler
        from paucal.data.shards.stream import ShardPrefetcher
        from paucal.data.stores import locate

        total = self.count // BATCH
        stream, everything = self.images.stream, np.arange(len(self.images))
        assert stream is not None
        ahead = ShardPrefetcher(self.images.store, everything).request_shards
        place = self.rank, self.world
        sampler = StepSampler(everything, self.size, total, 0, self.step, *place, stream=stream, on_pass=ahead)
        for batch in sampler:
            for key in batch:
                store, position = locate(self.images.store, key.index)
                np.asarray(store.read(position))  # RGB already
            yield [int(Path(self.images.keys[key.index]).stem) for key in batch]  # as the ledger of a run asks for keys


def shard_names() -> list[str]:
    """Return the names of the tar shards."""
    return sorted(file.name for file in Path(os.environ["SHARDS"]).glob("*.tar"))


class Litdata(Reader):
    """litdata's loader, whose state may be loaded by another number of processes."""

    def open(self) -> None:
        """Open the chunks and load the state."""
        import litdata  # pyright: ignore[reportMissingImports]
        from litdata.streaming import downloader  # pyright: ignore[reportMissingImports]

        # Its client refuses an address without TLS, and has no public setting for that.
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
        options = {"endpoint_url": self.url}
        cache = str(self.folder / "chunks")  # one for all processes, as by default: the state names it
        dataset = litdata.StreamingDataset(
            f"s3://{BUCKET}/chunks", cache_dir=cache, shuffle=True, drop_last=True, seed=0, storage_options=options
        )
        self.loader = litdata.StreamingDataLoader(dataset, batch_size=self.size, num_workers=0, collate_fn=list)
        if self.saved is not None:
            self.loader.load_state_dict(self.saved)

    def state(self) -> Any:
        """Return the loader's state."""
        return self.loader.state_dict()

    def batches(self) -> Iterator[list[int]]:
        """Yield whole batches."""
        for batch in self.loader:
            if len(batch) == self.size:
                np.stack([decoded(sample["image"]) for sample in batch])
                yield [sample["id"] for sample in batch]


class Datasets(Reader):
    """Hugging Face's streaming with a state of each process."""

    def open(self) -> None:
        """Open the same tar shards and load the state."""
        from datasets import Image, load_dataset  # pyright: ignore[reportMissingImports]
        from datasets.distributed import split_dataset_by_node  # pyright: ignore[reportMissingImports]

        files = [f"{self.url}/{BUCKET}/tar/{name}" for name in shard_names()]
        whole = load_dataset("webdataset", data_files={"train": files}, split="train", streaming=True)
        shuffled = whole.cast_column("jpg", Image(decode=False)).shuffle(seed=0, buffer_size=BUFFER)
        self.dataset = split_dataset_by_node(shuffled, self.rank, self.world)
        if self.saved is not None:
            self.dataset.load_state_dict(self.saved)

    def state(self) -> Any:
        """Return the state of this process's part."""
        return self.dataset.state_dict()

    def batches(self) -> Iterator[list[int]]:
        """Yield whole batches."""
        return self.grouped((int(sample["__key__"]), sample["jpg"]["bytes"]) for sample in self.dataset)


class Webdataset(Reader):
    """webdataset, which has no state: shards are drawn with replacement."""

    def batches(self) -> Iterator[list[int]]:
        """Yield as many batches as are left of a pass."""
        import webdataset  # pyright: ignore[reportMissingImports]

        urls = [f"{self.url}/{BUCKET}/tar/{name}" for name in shard_names()]
        # The handler leaves out a shard that cannot be read, which draws with replacement allow.
        options = {"resampled": True, "handler": webdataset.warn_and_continue}
        samples = webdataset.WebDataset(urls, nodesplitter=None, **options).shuffle(BUFFER).to_tuple("__key__", "jpg")
        batches = self.grouped((int(key), content) for key, content in samples)
        return itertools.islice(batches, self.count // BATCH - self.step)


READERS = {"paucal": Paucal, "litdata": Litdata, "datasets": Datasets, "webdataset": Webdataset}
