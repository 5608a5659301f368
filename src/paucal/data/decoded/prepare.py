"""The one pass over a set's images: each is verified, recognised, measured and kept decoded, and all that once.

What a first run has found out the next ones read: files are recognised by place, size and time of change, images by
their bytes, so that a set that was moved, copied or added to is not decoded again.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL
from numpy.typing import NDArray

from paucal.data.channels.decoding import decode_image
from paucal.data.channels.pixel_format import with_value_ranges
from paucal.data.decode import Reading, UnreadableImage
from paucal.data.decoded.cache_folder import (
    INDEX,
    KNOWN,
    PIXELS,
    StoredDigests,
    free_bytes,
    free_space,
    read_encoded,
    source_digest,
    usable_folder,
)
from paucal.data.decoded.in_memory import cache_images
from paucal.data.decoded.on_disk import Entry, EntryWriter, FullError, MappedStore, find_entry, read_table
from paucal.data.images import ImageSet
from paucal.data.stores import ConvertedStore, EncodedStore, locate
from paucal.data.unreadable import OnBad, ReportProgress, drop_unreadable, for_each, verify_images
from paucal.types import UserError
from paucal.wording import counted

FORMAT = 1  # of the entries; a change in how images are reduced needs another
TRIED = 256  # images of a set that is read as it comes
_SAMPLE = 64
_SIDES = (64, 128, 512)


def side_for(image_size: Sequence[int]) -> int:
    """Return the shorter side that images are kept at for a network: at least twice its own, in a few steps.

    A crop of a quarter of the image's area then still has every pixel that the network sees. Few steps let networks of
    different sizes share what is kept, as the sizes that `paucal train` tries one after the other do.

    Example:
        >>> [side_for([side]) for side in (16, 32, 64, 96, 160, 224, 240, 384)]
        [64, 64, 128, 512, 512, 512, 512, 1024]
    """
    wanted = 2 * max(image_size)
    return next((side for side in _SIDES if side >= wanted), 1 << (wanted - 1).bit_length())


def prepare_images(
    image_set: ImageSet,
    reading: Reading,
    on_bad: OnBad = "refuse",
    workers: int | None = None,
    progress: ReportProgress | None = None,
) -> tuple[ImageSet, list[str]]:
    """Verify every image once, and keep all of them decoded in a file that runs share.

    Where the disk has no room for them they are kept in memory, and where that does not do either they are verified
    and read anew each time. Images of shards are read as they come: `stream_images`.

    Args:
        image_set: Images of files, or in memory.
        reading: Size, channels and value ranges of the decoded images. Missing ranges are measured if images have more
            than 8 bits a channel.
        on_bad: Treatment of unreadable images: "refuse" or "skip".
        workers: Number of threads; None for one per processor core.
        progress: Function called with (images done, images in all) from the calling thread.

    Returns:
        The set without unreadable images, which says how it is read, and the keys of those left out.

    Raises:
        UserError: images are unreadable and `on_bad` is "refuse", or none is readable.
    """
    reading, notes = with_value_ranges(reading, image_set)
    image_set = replace(image_set, notes=tuple(dict.fromkeys([*image_set.notes, *notes])))
    if image_set.stream is not None:
        return stream_images(image_set, reading, on_bad, workers, progress)
    # Every image is looked at through the reading, also where nothing is reduced: then it changes nothing.
    seen = replace(image_set, store=ConvertedStore(image_set.store, reading), reading=reading)
    encoded = all(isinstance(locate(image_set.store, index)[0], EncodedStore) for index in range(len(image_set)))
    folder = usable_folder() if encoded else None
    if folder is not None and _estimate(seen) <= (room := free_bytes(folder)):
        try:
            return _PreparationPass(image_set, seen, folder, room, workers, progress).run(on_bad)
        except (FullError, OSError):  # the disk is fuller than it said, or gone
            pass
    return cache_images(seen, on_bad=on_bad, workers=workers, progress=progress)


def _estimate(images: ImageSet) -> float:
    """Return the bytes that the decoded images take, from a sample of headers."""
    sizes = [images.reading.reduced((height, width)) for height, width in images.sample_sizes(_SAMPLE).tolist()]
    pixels = float(np.mean([height * width for height, width in sizes])) if sizes else 0.0
    return pixels * images.reading.channels * len(images)


class _PreparationPass:
    """One pass over a set; see `prepare_images`."""

    def __init__(
        self,
        image_set: ImageSet,
        seen: ImageSet,
        folder: Path,
        room: int,
        workers: int | None,
        progress: ReportProgress | None,
    ) -> None:
        self.seen, self.folder, self.room, self.workers, self.progress = seen, folder, room, workers, progress
        self.places = [locate(image_set.store, index) for index in range(len(image_set))]
        self.stamps = [store.stamp(place) for store, place in self.places if isinstance(store, EncodedStore)]
        self.about = f"{FORMAT} {PIL.__version__} {seen.reading}"
        self.memory = StoredDigests(folder, image_set.location)
        self.digests, self.known = self.memory.look_up(self.stamps)
        self.bad: dict[int, str] = {}
        self.done = 0

    def run(self, on_bad: OnBad) -> tuple[ImageSet, list[str]]:
        """Return the set as it is kept, and the keys of what cannot be read."""
        if not (self.known.all() and self._entry()):
            self._fill()
        self._report(len(self.places))
        good, names = drop_unreadable(self.seen, self.bad, on_bad)
        entry = self._entry()
        return (good if entry is None else replace(good, store=MappedStore(good.store, entry))), names

    def _fill(self) -> None:
        others = _OtherEntries(self.folder, self.about)
        with EntryWriter(self.folder, len(self.places), self.room, self.seen.reading.channels) as writer:
            self._each(np.flatnonzero(~self.known), lambda index: self._take(index, writer, others))
            chosen = self._good()
            if not self._entry():  # what was new may have been bad, or the set a copy of another one
                self._each(np.flatnonzero(self.known), lambda index: self._take(index, writer, others))
                chosen = self._good()
                if len(chosen):
                    writer.table.digests[:] = self.digests
                    writer.finish(self._key(), chosen, self.about)
        self.memory.remember([self.stamps[index] for index in chosen], self.digests[chosen])
        free_space(self.folder, spare=self.folder / f"{self._key()}{PIXELS}")

    def _take(self, index: int, writer: EntryWriter, others: "_OtherEntries") -> None:
        """Put an image into the entry: from another one that has it, or decoded."""
        store, place = self.places[index]
        assert isinstance(store, EncodedStore)
        if self.known[index] and others.give(self.digests[index].tobytes(), index, writer):
            return
        name = store.name(place)
        source = _content(store, place)
        if not self.known[index]:
            digest = source_digest(source)
            self.digests[index] = np.frombuffer(digest, dtype=np.uint8)
            if others.give(digest, index, writer):
                return
        image = decode_image(source, name, self.seen.reading)
        # What is larger than the side it is reduced to was not reduced, so its header need not be read again.
        reduced = min(image.size) == self.seen.reading.side
        writer.add(index, image, store.size(place) if reduced else (image.height, image.width))

    def _each(self, indices: NDArray[np.int64], work: Callable[[int], None]) -> None:
        found = for_each(
            len(indices),
            lambda row: work(int(indices[row])),
            self.workers,
            lambda done, total: self._report(self.done + done),
        )
        self.bad.update({int(indices[row]): words for row, words in found.items()})
        self.done += len(indices)

    def _report(self, done: int) -> None:
        if self.progress is not None:
            self.progress(done, len(self.places))

    def _good(self) -> NDArray[np.int64]:
        return np.asarray([index for index in range(len(self.places)) if index not in self.bad], dtype=np.int64)

    def _entry(self) -> Entry | None:
        return find_entry(self.folder, self._key())

    def _key(self) -> str:
        digest = hashlib.blake2b(self.about.encode(), digest_size=20)
        digest.update(self.digests[self._good()].tobytes())
        return digest.hexdigest()


class _OtherEntries:
    """The images that other entries have, read in the same way, by the digests of their bytes."""

    def __init__(self, folder: Path, about: str) -> None:
        self._places: dict[bytes, tuple[Entry, int]] = {}
        for index in folder.glob(f"*{INDEX}"):
            found = None if index.name.endswith(f"{KNOWN}{INDEX}") else read_table(index)
            entry = find_entry(folder, index.name.removesuffix(INDEX)) if found and found[1] == about else None
            if entry is not None:
                self._places.update({row.tobytes(): (entry, place) for place, row in enumerate(entry.table.digests)})

    def give(self, digest: bytes, index: int, writer: EntryWriter) -> bool:
        """Copy an image into an entry; return whether there is one."""
        found = self._places.get(digest)
        return found is not None and writer.copy(index, *found)


def _content(store: EncodedStore, place: int) -> bytes | Path:
    try:
        return read_encoded(store.source(place))
    except OSError as problem:
        raise UnreadableImage(f"image {store.name(place)} cannot be decoded: {problem.strerror or problem}") from None


def stream_images(
    image_set: ImageSet,
    reading: Reading,
    on_bad: OnBad,
    workers: int | None = None,
    progress: ReportProgress | None = None,
) -> tuple[ImageSet, list[str]]:
    """Return a set of shards as a run reads it; an image that cannot be read ends the run when its turn comes.

    To leave such images out they must be known beforehand, so that every process shows the same images in the same
    steps: with "skip" every image is tried once.

    Args:
        image_set: Streamed set.
        reading: Size, channels and value ranges of the decoded images.
        on_bad: Treatment of unreadable images: "refuse" or "skip".
        workers: Number of threads; None for one per processor core.
        progress: Function called with (images done, images in all).

    Returns:
        The set, and the keys of the images left out.

    Raises:
        UserError: one of 256 images spread over the set cannot be read, or with "skip" none can.
    """
    seen = replace(image_set, store=ConvertedStore(image_set.store, reading), reading=reading)
    if on_bad == "skip":
        return verify_images(seen, on_bad, workers, progress)
    tried = seen.sample(TRIED)
    bad = for_each(len(tried), lambda row: seen.store.check(int(tried[row])), workers, progress)
    if bad:
        key = image_set.keys[int(tried[min(bad)])]
        raise UserError(
            f"{len(bad)} of {counted(len(tried), 'image')} that were tried cannot be read ({key}); {bad[min(bad)]}; "
            "make the shards again, or leave such images out with --on-bad-image skip, which tries all of them first"
        )
    return seen, []
