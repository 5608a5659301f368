"""The preparation of a set, once for all runs: verify, measure, and store every image decoded.

Files are recognised by path, size and time of change, and images by their bytes, so that a set that was moved, copied
or extended is not decoded again.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import PIL
from numpy.typing import NDArray

from paucal.data.channels.decoding import decode_image
from paucal.data.channels.pixel_format import with_value_ranges
from paucal.data.decode import Reading, UnreadableImage
from paucal.data.decoded.cache_folder import INDEX, KNOWN, PIXELS, free_bytes, free_space, usable_folder
from paucal.data.decoded.in_memory import cache_images, estimate_bytes
from paucal.data.decoded.on_disk import Entry, EntryWriter, FullError, MappedStore, find_entry, read_table
from paucal.data.decoded.stored_digests import StoredDigests, read_encoded, source_digest
from paucal.data.images import ImageSet
from paucal.data.stores import ConvertedStore, EncodedStore, locate
from paucal.data.unreadable import OnBad, ReportProgress, drop_unreadable, for_each, verify_images
from paucal.types import UserError
from paucal.wording import counted

FORMAT = 1  # version of entries; raise it if images are reduced in another way
TRIED = 256  # images of a streamed set that are verified
_SIDES = (64, 128, 512)  # pixels


def side_for(image_size: Sequence[int]) -> int:
    """Return the shorter side of stored images for a network: one of a few sizes, at least twice the input size.

    A crop of a quarter of the area then needs no enlargement. Networks of similar input sizes, such as those that
    `paucal train` tries one after the other, share stored images.

    Example:
        >>> [side_for([side]) for side in (16, 32, 64, 96, 160, 224, 240, 384)]
        [64, 64, 128, 512, 512, 512, 512, 1024]
    """
    min_side = 2 * max(image_size)
    return next((side for side in _SIDES if side >= min_side), 1 << (min_side - 1).bit_length())


def prepare_images(
    image_set: ImageSet,
    reading: Reading,
    on_bad: OnBad = "refuse",
    workers: int | None = None,
    progress: ReportProgress | None = None,
) -> tuple[ImageSet, list[str]]:
    """Verify every image once, and keep all of them decoded in a file that runs share.

    If the disk is too full, they are kept in memory; if the memory is too small, they are only verified, and decoded
    each time they are read. `stream_images` handles streamed images.

    Args:
        image_set: Images in files or in memory.
        reading: Size, channels and value ranges of the decoded images. Missing ranges are measured if images have more
            than 8 bits per channel.
        on_bad: Treatment of unreadable images: "refuse" or "skip".
        workers: Number of threads; None for one per CPU core.
        progress: Function called with (images done, images in all) from the calling thread.

    Returns:
        The set without unreadable images, with its `reading`, and the keys of the images left out.

    Raises:
        UserError: Images are unreadable and `on_bad` is "refuse", or none is readable.
    """
    reading, notes = with_value_ranges(reading, image_set)
    image_set = replace(image_set, notes=tuple(dict.fromkeys([*image_set.notes, *notes])))
    if image_set.stream is not None:
        return stream_images(image_set, reading, on_bad, workers, progress)
    converted_set = replace(image_set, store=ConvertedStore(image_set.store, reading), reading=reading)
    encoded = all(isinstance(locate(image_set.store, index)[0], EncodedStore) for index in range(len(image_set)))
    folder = usable_folder() if encoded else None
    if folder is not None and estimate_bytes(converted_set) <= (free_space := free_bytes(folder)):
        try:
            return _PreparationPass(image_set, converted_set, folder, free_space, workers, progress).run(on_bad)
        except (FullError, OSError):  # the disk has less free space than reported, or none
            pass
    return cache_images(converted_set, on_bad=on_bad, workers=workers, progress=progress)


class _PreparationPass:
    """One pass over a set; see `prepare_images`."""

    def __init__(
        self,
        image_set: ImageSet,
        converted_set: ImageSet,
        folder: Path,
        max_bytes: int,
        workers: int | None,
        progress: ReportProgress | None,
    ) -> None:
        self.converted_set, self.folder, self.max_bytes = converted_set, folder, max_bytes
        self.workers, self.progress = workers, progress
        self.places = [locate(image_set.store, index) for index in range(len(image_set))]
        self.stamps = [store.stamp(place) for store, place in self.places if isinstance(store, EncodedStore)]
        self.about = f"{FORMAT} {PIL.__version__} {converted_set.reading}"
        self.memory = StoredDigests(folder, image_set.location)
        self.digests, self.known = self.memory.look_up(self.stamps)
        self.bad: dict[int, str] = {}
        self.done = 0

    def run(self, on_bad: OnBad) -> tuple[ImageSet, list[str]]:
        """Return the prepared set, and the keys of unreadable images."""
        if not (self.known.all() and self._entry()):
            self._store_images()
        self._report(len(self.places))
        readable_set, names = drop_unreadable(self.converted_set, self.bad, on_bad)
        if (entry := self._entry()) is not None:
            readable_set = replace(readable_set, store=MappedStore(readable_set.store, entry))
        return readable_set, names

    def _store_images(self) -> None:
        other_entries = _OtherEntries(self.folder, self.about)
        with EntryWriter(self.folder, len(self.places), self.max_bytes, self.converted_set.reading.channels) as writer:
            store_image = partial(self._store_image, writer=writer, other_entries=other_entries)
            self._for_each(np.flatnonzero(~self.known), store_image)
            readable = self._readable_positions()
            if not self._entry():  # the entry exists already if all new images are unreadable, or if the set is a copy
                self._for_each(np.flatnonzero(self.known), store_image)
                readable = self._readable_positions()
                if len(readable):
                    writer.table.digests[:] = self.digests
                    writer.finish(self._key(), readable, self.about)
        self.memory.remember([self.stamps[index] for index in readable], self.digests[readable])
        free_space(self.folder, spare=self.folder / f"{self._key()}{PIXELS}")

    def _store_image(self, index: int, writer: EntryWriter, other_entries: "_OtherEntries") -> None:
        """Add an image to the entry: copied from another entry if possible, else decoded."""
        store, position = self.places[index]
        assert isinstance(store, EncodedStore)
        if self.known[index] and other_entries.copy_to(writer, index, self.digests[index].tobytes()):
            return
        source = _read_content(store, position)
        if not self.known[index]:
            digest = source_digest(source)
            self.digests[index] = np.frombuffer(digest, dtype=np.uint8)
            if other_entries.copy_to(writer, index, digest):
                return
        image = decode_image(source, store.name(position), self.converted_set.reading)
        # An image with any other shorter side was not reduced, so its header need not be read again.
        reduced = min(image.size) == self.converted_set.reading.side
        writer.add(index, image, store.size(position) if reduced else (image.height, image.width))

    def _for_each(self, indices: NDArray[np.int64], work: Callable[[int], None]) -> None:
        problems = for_each(
            len(indices),
            lambda row: work(int(indices[row])),
            self.workers,
            lambda done, total: self._report(self.done + done),
        )
        self.bad.update({int(indices[row]): problem for row, problem in problems.items()})
        self.done += len(indices)

    def _report(self, done: int) -> None:
        if self.progress is not None:
            self.progress(done, len(self.places))

    def _readable_positions(self) -> NDArray[np.int64]:
        return np.asarray([index for index in range(len(self.places)) if index not in self.bad], dtype=np.int64)

    def _entry(self) -> Entry | None:
        return find_entry(self.folder, self._key())

    def _key(self) -> str:
        digest = hashlib.blake2b(self.about.encode(), digest_size=20)
        digest.update(self.digests[self._readable_positions()].tobytes())
        return digest.hexdigest()


class _OtherEntries:
    """The images in other entries with the same `Reading`, by their digests."""

    def __init__(self, folder: Path, about: str) -> None:
        self._places: dict[bytes, tuple[Entry, int]] = {}
        for index in folder.glob(f"*{INDEX}"):
            stored = None if index.name.endswith(f"{KNOWN}{INDEX}") else read_table(index)
            if stored is None or stored[1] != about:
                continue
            if (entry := find_entry(folder, index.name.removesuffix(INDEX))) is not None:
                self._places.update({digest.tobytes(): (entry, row) for row, digest in enumerate(entry.table.digests)})

    def copy_to(self, writer: EntryWriter, index: int, digest: bytes) -> bool:
        """Copy the image with a digest into an entry; return whether there was such an image."""
        place = self._places.get(digest)
        return place is not None and writer.copy(index, *place)


def _read_content(store: EncodedStore, index: int) -> bytes | Path:
    try:
        return read_encoded(store.source(index))
    except OSError as problem:
        raise UnreadableImage(f"image {store.name(index)} cannot be decoded: {problem.strerror or problem}") from None


def stream_images(
    image_set: ImageSet,
    reading: Reading,
    on_bad: OnBad,
    workers: int | None = None,
    progress: ReportProgress | None = None,
) -> tuple[ImageSet, list[str]]:
    """Return a streamed set with its reading; an unreadable image ends the run when it is read.

    With "skip", every image is decoded once beforehand, since all processes must leave out the same images.

    Returns:
        The set, and the keys of the images left out.
    """
    converted_set = replace(image_set, store=ConvertedStore(image_set.store, reading), reading=reading)
    if on_bad == "skip":
        return verify_images(converted_set, on_bad, workers, progress)
    tested = converted_set.sample(TRIED)
    problems = for_each(len(tested), lambda row: converted_set.store.check(int(tested[row])), workers, progress)
    if problems:
        first = min(problems)
        raise UserError(
            f"{len(problems)} of {counted(len(tested), 'image')} that were tested cannot be read "
            f"({image_set.keys[int(tested[first])]}); {problems[first]}; make the shards again, or leave such images "
            "out with --on-bad-image skip, which decodes all of them first."
        )
    return converted_set, []
