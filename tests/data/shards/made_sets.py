"""Sets of tiny images whose pixels say which image they are, in any number, without the cost of an encoder."""

import numpy as np
from PIL import Image

from paucal.data.images import ImageSet
from paucal.data.shards.stream import Stream
from paucal.data.stores import EncodedStore

CLASSES = ("even", "odd", "third")
URL = "memory://bucket/set"  # the storage of the tests


class Numbered(EncodedStore):
    """Images of 4 x 4 pixels in the colour of their number."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def name(self, index: int) -> str:
        return f"made/{index}.ppm"

    def source(self, index: int) -> bytes:
        return b"P6 4 4 255\n" + index.to_bytes(3, "big") * 16


def numbered(count: int, parts: tuple[str, ...] = ("",)) -> ImageSet:
    """A set whose image n has the label n % 3 and belongs to the part n % len(parts)."""
    return ImageSet(
        name="made",
        location="made",
        classes=CLASSES,
        keys=[f"made/{n}.ppm" for n in range(count)],
        labels=np.arange(count) % 3,
        declared_splits=[parts[n % len(parts)] for n in range(count)],
        store=Numbered(count),
    )


def number_of(image: Image.Image) -> int:
    """Which image of a numbered set this is."""
    return int.from_bytes(bytes(image.getpixel((1, 2))), "big")  # type: ignore[arg-type]


def shards_of(stream: Stream, images: np.ndarray) -> np.ndarray:
    return stream.shards[np.searchsorted(stream.ends, images, side="right")]
