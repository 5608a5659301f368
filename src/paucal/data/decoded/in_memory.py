"""Decoding of all images of a set into one block of memory that loader workers share."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.channels.pixels import RGB, pixels_of
from paucal.data.decoded.on_disk import CacheFullError
from paucal.data.images import ImageSet
from paucal.data.processes import start_method
from paucal.data.stores import DecodedCopies, Store
from paucal.data.unreadable import OnBad, ReportProgress, drop_unreadable, process_images, verify_images
from paucal.memory import read_available_memory

MAX_BYTES = 4 << 30  # largest size of the decoded images of a set
_MAX_MEMORY_FRACTION = 0.25  # largest fraction of the free memory that decoded images may take up
_SAMPLED_IMAGES = 256  # number of images whose headers are read to estimate the size
_SIZE_MARGIN = 1.5  # ratio of the allocated size to the estimated size
_SHARED_MEMORY_FOLDER = Path("/dev/shm")


class InMemoryStore(DecodedCopies):
    """Decoded images of `channels` channels, stored one after the other in a flat uint8 tensor in shared memory.

    `offsets` are the (N,) positions at which the images begin, and `shapes` their (N, 2) heights and widths in pixels.
    `original` is the store of the original images; None if only the decoded copies exist.
    """

    def __init__(
        self, pixels: Tensor, offsets: Tensor, shapes: Tensor, original: Store | None = None, channels: int = RGB
    ) -> None:
        super().__init__(original)
        self.pixels, self.offsets, self.shapes, self.channels = pixels, offsets, shapes, channels

    def __len__(self) -> int:
        return len(self.offsets)

    def size(self, index: int) -> tuple[int, int]:
        """Return the (height, width) of the original image."""
        if self.original is not None:
            return self.original.size(index)
        height, width = self.shapes[index].tolist()
        return height, width

    def view(self, index: int) -> NDArray[np.uint8]:
        """Return the (H, W, C) pixels of an image without copying them."""
        height, width = self.shapes[index].tolist()
        start = int(self.offsets[index])
        flat = self.pixels[start : start + height * width * self.channels]
        return flat.numpy().reshape(height, width, self.channels)


def cache_images(
    image_set: ImageSet, max_bytes: int | None = None, on_bad: OnBad = "refuse", progress: ReportProgress | None = None
) -> tuple[ImageSet, list[str]]:
    """Decode every image once to verify it, and keep all decoded images in memory if they fit.

    The size is estimated from the headers of a sample. If it exceeds `max_bytes` (None allows a quarter of the free
    memory, at most 4 GiB), the returned set decodes the original images. The other arguments and the result are those
    of `verify_images`.
    """
    if max_bytes is None:
        max_bytes = min(MAX_BYTES, int(_MAX_MEMORY_FRACTION * read_available_memory()))
    estimate = estimate_decoded_bytes(image_set, _SAMPLED_IMAGES)
    # The margin is for an unrepresentative sample, and costs nothing, since memory is not used before it is written.
    pixels = _allocate(min(max_bytes, int(_SIZE_MARGIN * estimate))) if 0 < estimate <= max_bytes else None
    if pixels is None:
        return verify_images(image_set, on_bad, progress)
    offsets, shapes = np.zeros(len(image_set), dtype=np.int64), np.zeros((len(image_set), 2), dtype=np.int64)
    block, used, lock = pixels.numpy(), 0, threading.Lock()

    def decode_into_block(index: int) -> None:
        nonlocal used
        image = pixels_of(image_set.store.read(index))
        with lock:
            start = used
            used = end = start + image.size
        if end > block.size:
            raise CacheFullError
        block[start:end] = image.reshape(-1)
        offsets[index], shapes[index] = start, image.shape[:2]

    try:
        problems = process_images(len(image_set), decode_into_block, progress)
    except CacheFullError:  # the estimate was too low
        return verify_images(image_set, on_bad, progress)
    readable_set, names = drop_unreadable(image_set, problems, on_bad)
    readable = np.setdiff1d(np.arange(len(image_set)), list(problems))
    shared = [torch.from_numpy(table[readable]).share_memory_() for table in (offsets, shapes)]
    store = InMemoryStore(pixels, shared[0], shared[1], readable_set.store, image_set.decode_options.channels)
    return replace(readable_set, store=store), names


def estimate_decoded_bytes(images: ImageSet, sample: int = 64) -> float:
    """Estimate the bytes of a set's decoded images from the headers of a sample; 0 if no header is readable."""
    sizes = [
        images.decode_options.reduced_size((height, width)) for height, width in images.sample_sizes(sample).tolist()
    ]
    pixels = sum(height * width for height, width in sizes) / max(len(sizes), 1)
    return pixels * images.decode_options.channels * len(images)


def _allocate(size: int) -> Tensor | None:
    """Allocate memory that loader workers can read, if possible."""
    # Writing to a full shared-memory file system kills the process, so the free space is checked. Containers often have
    # only 64 MB of shared memory. Half of the free space is left for the batches that workers send.
    if not _SHARED_MEMORY_FOLDER.is_dir() or 2 * size <= shutil.disk_usage(_SHARED_MEMORY_FOLDER).free:
        return torch.empty(size, dtype=torch.uint8).share_memory_()
    return torch.empty(size, dtype=torch.uint8) if start_method() == "fork" else None  # forked workers inherit memory
