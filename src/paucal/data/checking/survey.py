"""Measurement of all images of a set in one pass: size, mode, brightness, digest (copies) and hash (similar images)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.data.channels.decoding import decode_for_display
from paucal.data.channels.pixels import RGB
from paucal.data.checking.image_hashes import compute_hash, reduce_to_grey
from paucal.data.decode import UnreadableImage
from paucal.data.decoded.on_disk import source_digest
from paucal.data.images import ImageSet
from paucal.data.stores import DecodedCopies, EncodedStore, Store, locate, locate_original
from paucal.data.unreadable import ReportProgress, process_images

_DECODED_SIDE = 64  # shorter side of decoded images in pixels, enough for the hash and the brightness


@dataclass(frozen=True)
class Survey:
    """Measurements of N images; 0, "" or NaN for unreadable images."""

    sizes: NDArray[np.int64]  # (N, 2) heights and widths of the upright images in pixels
    modes: list[str]  # Pillow modes of the pixels in the files, such as "RGB", "L" or "CMYK"
    digests: list[bytes]  # digests of the files' bytes, or of the pixels of images without a file
    hashes: NDArray[np.uint64]  # (N,) perceptual hashes
    brightness: NDArray[np.float64]  # (N,) mean of the grey pixels, from 0 to 1
    contrast: NDArray[np.float64]  # (N,) standard deviation of the 32 x 32 grey pixels
    unreadable: dict[int, str]  # error message for each image that cannot be read, by position

    def __len__(self) -> int:
        return len(self.digests)

    def select(self, positions: NDArray[np.int64]) -> "Survey":
        """Return the measurements of the images at (n,) positions, in the order of the positions."""
        indices = positions.tolist()
        return Survey(
            self.sizes[positions],
            [self.modes[index] for index in indices],
            [self.digests[index] for index in indices],
            self.hashes[positions],
            self.brightness[positions],
            self.contrast[positions],
            {new: self.unreadable[old] for new, old in enumerate(indices) if old in self.unreadable},
        )

    @property
    def readable_positions(self) -> NDArray[np.int64]:
        """Positions of the images that can be read."""
        return np.setdiff1d(np.arange(len(self)), list(self.unreadable))


def survey_images(images: ImageSet, progress: ReportProgress | None = None) -> Survey:
    """Measure every image of a set: decode the image once (a JPEG at a reduced size) and read its whole file."""
    count = len(images)
    survey = Survey(
        sizes=np.zeros((count, 2), dtype=np.int64),
        modes=[""] * count,
        digests=[b""] * count,
        hashes=np.zeros(count, dtype=np.uint64),
        brightness=np.full(count, np.nan),
        contrast=np.full(count, np.nan),
        unreadable={},
    )

    def measure(index: int) -> None:
        store, position = locate(images.store, index)
        if isinstance(store, EncodedStore):
            source, value_range = store.source(position), images.decode_options.value_range
            image, mode, size = decode_for_display(source, store.name(position), _DECODED_SIDE, value_range)
        else:
            image = store.read(position)
            mode, size = image.mode, (image.height, image.width)
        if images.decode_options.channels != RGB:
            images.store.check(index)  # images that can be shown may have channels that a run cannot read
        digest = digest_of(images.store, index)
        grey = reduce_to_grey(image)
        survey.sizes[index], survey.modes[index], survey.digests[index] = size, mode, digest
        survey.hashes[index] = compute_hash(grey)
        survey.brightness[index], survey.contrast[index] = grey.mean() / 255, grey.std() / 255

    survey.unreadable.update(process_images(count, measure, progress))
    return survey


def image_digests(images: ImageSet) -> Iterator[str]:
    """Yield the digest of each image in hexadecimal digits; "" for streamed and for unreadable images."""
    for index in range(len(images)):
        yield (None if images.stream is not None else digest_or_none(images.store, index)) or ""


def digest_or_none(store: Store, index: int) -> str | None:
    """Return the digest of an image in hexadecimal digits; None if the image cannot be read."""
    try:
        return digest_of(store, index).hex()
    except UnreadableImage:
        return None


def digest_of(store: Store, index: int) -> bytes:
    """Return the digest of the bytes of an image's original file, or of its size and pixels if it has no file."""
    store, index = locate(store, index)
    if isinstance(store, DecodedCopies) and (stored_digest := store.digest(index)) is not None:
        return stored_digest
    store, index = locate_original(store, index)
    if not isinstance(store, EncodedStore):
        image = store.read(index)
        return source_digest(f"{image.size}".encode() + image.tobytes())
    try:
        return source_digest(store.source(index))
    except OSError as problem:
        raise UnreadableImage(f"image {store.name(index)} cannot be read: {problem.strerror}") from None
