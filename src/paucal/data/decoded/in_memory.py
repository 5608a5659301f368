"""All images of a set decoded once into one block of memory that loader workers share."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from paucal.data.channels.pixels import RGB, image_from_pixels, pixels_of
from paucal.data.decoded.on_disk import FullError
from paucal.data.images import ImageSet
from paucal.data.processes import start_method
from paucal.data.stores import DecodedCopies, Store
from paucal.data.unreadable import OnBad, ReportProgress, drop_unreadable, for_each, verify_images
from paucal.memory import available_memory

MAX_BYTES = 4 << 30
_SHARE_OF_FREE = 0.25
_SAMPLE = 256
_MARGIN = 1.5
_SHARED_MEMORY = Path("/dev/shm")


class CachedStore(DecodedCopies):
    """Decoded images, stored one after the other in a flat tensor.

    Args:
        pixels: (total bytes,) uint8, in shared memory.
        offsets: (N,) int64 positions of the images in `pixels`.
        shapes: (N, 2) int64 heights and widths.
        channels: Number of channels of every image.
        original: Store of the original images; None if there are only decoded copies.
    """

    def __init__(
        self, pixels: Tensor, offsets: Tensor, shapes: Tensor, original: Store | None = None, channels: int = RGB
    ) -> None:
        super().__init__(original)
        self.pixels, self.offsets, self.shapes, self.channels = pixels, offsets, shapes, channels

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, index: int) -> Image.Image:
        """Return a copy of the image."""
        return image_from_pixels(self.view(index))

    def size(self, index: int) -> tuple[int, int]:
        """Return the (height, width) of the original image."""
        return self._stored_size(index) if self.original is None else self.original.size(index)

    def check(self, index: int) -> None:
        """Do nothing, since cached images are readable."""

    def view(self, index: int) -> NDArray[np.uint8]:
        """Return a view of the (H, W, C) pixels of an image."""
        height, width = self._stored_size(index)
        start = int(self.offsets[index])
        flat = self.pixels[start : start + height * width * self.channels]
        return flat.numpy().reshape(height, width, self.channels)

    def _stored_size(self, index: int) -> tuple[int, int]:
        height, width = self.shapes[index].tolist()
        return height, width


def cache_images(
    image_set: ImageSet,
    budget: int | None = None,
    on_bad: OnBad = "refuse",
    workers: int | None = None,
    progress: ReportProgress | None = None,
) -> tuple[ImageSet, list[str]]:
    """Verify every image, and keep all images decoded if they fit in memory.

    The size is estimated from the headers of a sample. A set that does not fit is only verified and keeps its store.

    Args:
        image_set: Images to verify.
        budget: Maximum number of bytes for the decoded images, 0 for no cache; None for a quarter of the free memory,
            at most 4 GiB.
        on_bad: Treatment of unreadable images: "refuse" or "skip".
        workers: Number of threads; None for one per CPU core.
        progress: Function called with (images done, images in all) from the calling thread.

    Returns:
        The set (with a `CachedStore` if it fits) without unreadable images, and the keys of the unreadable images.

    Raises:
        UserError: Images are unreadable and `on_bad` is "refuse", or none is readable.
    """
    if budget is None:
        budget = min(MAX_BYTES, int(_SHARE_OF_FREE * available_memory()))
    estimate = estimate_bytes(image_set, _SAMPLE)
    # The margin covers an unlucky sample; allocated memory takes no space until it is written to.
    pixels = _allocate(min(budget, int(_MARGIN * estimate))) if 0 < estimate <= budget else None
    if pixels is None:
        return verify_images(image_set, on_bad, workers, progress)
    filler = _Filler(image_set.store, pixels)
    try:
        problems = for_each(len(image_set), filler, workers, progress)
    except FullError:  # the sample gave too low an estimate
        return verify_images(image_set, on_bad, workers, progress)
    readable_set, names = drop_unreadable(image_set, problems, on_bad)
    readable = np.asarray([i for i in range(len(image_set)) if i not in problems], dtype=np.int64)
    offsets, shapes = (torch.from_numpy(table[readable]).share_memory_() for table in (filler.offsets, filler.shapes))
    store = CachedStore(pixels, offsets, shapes, readable_set.store, image_set.reading.channels)
    return replace(readable_set, store=store), names


class _Filler:
    """Decodes images into the next free position of a block; called from several threads."""

    def __init__(self, source: Store, pixels: Tensor) -> None:
        self.offsets = np.zeros(len(source), dtype=np.int64)
        self.shapes = np.zeros((len(source), 2), dtype=np.int64)
        self._source, self._pixels, self._used, self._lock = source, pixels.numpy(), 0, threading.Lock()

    def __call__(self, index: int) -> None:
        image = pixels_of(self._source.read(index))
        with self._lock:
            start = self._used
            self._used = end = start + image.size
        if end > self._pixels.size:
            raise FullError
        self._pixels[start:end] = image.reshape(-1)
        self.offsets[index], self.shapes[index] = start, image.shape[:2]


def estimate_bytes(images: ImageSet, sample: int = 64) -> float:
    """Return the estimated size of a set's decoded images in bytes, from a sample of headers; 0 if none is readable."""
    sizes = [images.reading.reduced((height, width)) for height, width in images.sample_sizes(sample).tolist()]
    pixels = sum(height * width for height, width in sizes) / max(len(sizes), 1)
    return pixels * images.reading.channels * len(images)


def _allocate(size: int) -> Tensor | None:
    """Return shared memory, or private memory if workers are forked and so inherit it, or else None."""
    # A full shared-memory file system kills the process that writes to it, so its free space is checked. Containers
    # often have only 64 MB of it; half is left for the batches that workers send.
    if not _SHARED_MEMORY.is_dir() or 2 * size <= shutil.disk_usage(_SHARED_MEMORY).free:
        return torch.empty(size, dtype=torch.uint8).share_memory_()
    return torch.empty(size, dtype=torch.uint8) if start_method() == "fork" else None
