"""One look at every image of a set: what it is, how bright it is, and what it is equal or similar to."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.decoding import look_at
from paucal.data.channels.planes import RGB
from paucal.data.checking.perceptual_hash import hash_of, small_grey
from paucal.data.decode import UnreadableImage
from paucal.data.decoded.known import source_digest
from paucal.data.images import Copies, ImageSet, Store, locate, locate_original
from paucal.data.sources.stores import EncodedStore
from paucal.data.verify import ReportProgress, for_each

_SIDE = 64  # pixels that are enough for a hash and for brightness


@dataclass(frozen=True)
class Survey:
    """What one look at N images has found.

    Attributes:
        sizes: (N, 2) int64 heights and widths, upright; 0 for what cannot be read.
        modes: N modes of the pixels in the files, such as "RGB", "L" or "CMYK"; "" for what cannot be read.
        digests: N digests of the files' bytes, or of the pixels where there are no files; b"" for what cannot be read.
        hashes: (N,) uint64 perceptual hashes.
        brightness: (N,) mean of the pixels in grey, from 0 to 1; nan for what cannot be read.
        contrast: (N,) their standard deviation at 32 x 32 pixels.
        unreadable: why an image cannot be read, by position.
    """

    sizes: NDArray[np.int64]
    modes: list[str]
    digests: list[bytes]
    hashes: NDArray[np.uint64]
    brightness: NDArray[np.float64]
    contrast: NDArray[np.float64]
    unreadable: dict[int, str]

    def __len__(self) -> int:
        return len(self.digests)

    def of(self, positions: NDArray[np.int64]) -> "Survey":
        """Return what was found of some images, in that order."""
        places = positions.tolist()
        return Survey(
            self.sizes[positions],
            [self.modes[place] for place in places],
            [self.digests[place] for place in places],
            self.hashes[positions],
            self.brightness[positions],
            self.contrast[positions],
            {new: self.unreadable[old] for new, old in enumerate(places) if old in self.unreadable},
        )

    @property
    def readable(self) -> NDArray[np.int64]:
        """Positions of the images that can be read."""
        return np.asarray([i for i in range(len(self)) if i not in self.unreadable], dtype=np.int64)


def survey_images(images: ImageSet, workers: int | None = None, progress: ReportProgress | None = None) -> Survey:
    """Decode every image once, JPEG at a reduced size, and read all of its bytes.

    Args:
        images: the set; its reading has the range of values of more than 8 bits.
        workers: threads; None for one per processor core.
        progress: called with (images done, images in all) from the calling thread.
    """
    count = len(images)
    found = Survey(
        sizes=np.zeros((count, 2), dtype=np.int64),
        modes=[""] * count,
        digests=[b""] * count,
        hashes=np.zeros(count, dtype=np.uint64),
        brightness=np.full(count, np.nan),
        contrast=np.full(count, np.nan),
        unreadable={},
    )

    def look(index: int) -> None:
        picture, mode, size = _read(images.store, index, images.reading.value_range)
        if images.reading.channels != RGB:
            images.store.check(index)  # an image of other channels is seen, and no run can read it
        digest = digest_of(images.store, index)
        grey = small_grey(picture)
        found.sizes[index], found.modes[index], found.digests[index] = size, mode, digest
        found.hashes[index] = hash_of(grey)
        found.brightness[index], found.contrast[index] = grey.mean() / 255, grey.std() / 255

    found.unreadable.update(for_each(count, look, workers, progress))
    return found


def image_digests(images: ImageSet) -> Iterator[str]:
    """Yield the digest of each image in hexadecimal digits; "" where nobody reads it, as in shards, or nobody can."""
    for index in range(len(images)):
        yield (None if images.stream is not None else digest_or_none(images.store, index)) or ""


def digest_or_none(store: Store, index: int) -> str | None:
    """Return the digest of an image in hexadecimal digits; None where it cannot be read."""
    try:
        return digest_of(store, index).hex()
    except UnreadableImage:
        return None


def digest_of(store: Store, index: int) -> bytes:
    """Return what is equal for equal images alone: a digest of the file's bytes, else of size and pixels.

    The digest of a decoded copy is that of the image itself.

    Raises:
        UnreadableImage: the image cannot be read.
    """
    store, index = locate(store, index)
    if isinstance(store, Copies) and (known := store.digest(index)) is not None:
        return known
    store, index = locate_original(store, index)
    if not isinstance(store, EncodedStore):
        picture = store.read(index)
        return source_digest(f"{picture.size}".encode() + picture.tobytes())
    try:
        return source_digest(store.source(index))
    except OSError as problem:
        raise UnreadableImage(f"image {store.name(index)} cannot be read: {problem.strerror}") from None


def _read(
    store: Store, index: int, value_range: tuple[float, float] | None
) -> tuple[Image.Image, str, tuple[int, int]]:
    store, index = locate(store, index)
    if isinstance(store, EncodedStore):
        return look_at(store.source(index), store.name(index), _SIDE, value_range)
    picture = store.read(index)
    return picture, picture.mode, (picture.height, picture.width)
