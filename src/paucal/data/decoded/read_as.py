"""A store seen through a reading: its images reduced, and brought to 8 bits by the set's own range."""

from dataclasses import replace

from PIL import Image

from paucal.data.channels.decoding import as_read, check_image, decode_image, reduced
from paucal.data.channels.planes import RGB
from paucal.data.decode import WHOLE, Reading, unreadable_if_it_fails
from paucal.data.images import Copies, ImageSet, Nested, Store, locate
from paucal.data.sources.stores import EncodedStore


class ReadAs(Nested):
    """Hands over the images of another store as a reading says; sizes stay those of the images themselves.

    Args:
        original: where the images lie.
        reading: how they are handed over.
    """

    def __init__(self, original: Store, reading: Reading) -> None:
        self.original, self.reading = original, reading

    def __len__(self) -> int:
        return len(self.original)

    def locate(self, index: int) -> tuple[Store, int]:
        """Return the store that has an image itself, and its position there."""
        return self.original, index

    def read(self, index: int) -> Image.Image:
        """Return the image; a JPEG is decoded no larger than needed."""
        store, place = locate(self.original, index)
        if isinstance(store, EncodedStore):
            return decode_image(store.source(place), store.name(place), self.reading)
        if self.reading.channels == RGB:
            return reduced(store.read(place), self.reading)
        with unreadable_if_it_fails(f"number {index + 1}"):
            return as_read(store.read(place), self.reading)

    def check(self, index: int) -> None:
        """Raise if the image cannot be read."""
        store, place = locate(self.original, index)
        if isinstance(store, EncodedStore):
            check_image(store.source(place), store.name(place), self.reading)
        elif self.reading.channels == RGB:
            store.check(place)
        else:
            self.read(index)


class AsShown(ReadAs):
    """Hands over the images of another store in RGB, as they are shown: the first three of their channels."""

    def __init__(self, original: Store) -> None:
        super().__init__(original, WHOLE)

    def read(self, index: int) -> Image.Image:
        """Return the image in RGB."""
        return self.original.read(index).convert("RGB")


def smaller(images: ImageSet, side: int) -> ImageSet:
    """Return a set whose images are handed over at about `side` pixels of their shorter side, where they have more.

    A JPEG is decoded no larger than that needs, which for a camera's photo takes a twentieth of the time.
    """
    reading = replace(images.reading, side=side)
    return replace(images, store=ReadAs(images.store, reading), reading=reading)


def whole_image(images: ImageSet, index: int) -> Image.Image:
    """Return an image of a set in full size, however the set hands it over."""
    if images.reading.side is None:
        return images.store.read(index)
    store, place = locate(images.store, index)
    if isinstance(store, Copies) and store.original is not None:
        store, place = locate(store.original, place)
    return ReadAs(store, replace(images.reading, side=None)).read(place)


def as_opened(images: ImageSet) -> ImageSet:
    """Return a set as it was before it was kept decoded, without the images that could not be read."""
    store = images.store
    if isinstance(store, Copies) and store.original is not None:
        store = store.original
    return replace(images, store=store, reading=WHOLE)
