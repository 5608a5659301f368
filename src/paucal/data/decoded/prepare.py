"""Verifies every image of a set, measures value ranges and stores decoded images, once for all runs.

Unchanged files are recognised by path, size and modification time, and images by the digest of their bytes. So images
of a set that was moved, copied or extended are not decoded again.
"""

import errno
import hashlib
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import PIL
from numpy.typing import NDArray

from paucal.data.channels.decoding import decode_image
from paucal.data.channels.pixel_format import measure_value_ranges
from paucal.data.decode import DecodeOptions, UnreadableImage
from paucal.data.decoded.cache_folder import (
    DIGESTS_SUFFIX,
    INDEX_SUFFIX,
    PIXELS_SUFFIX,
    evict_entries,
    usable_cache_folder,
    usable_disk_bytes,
)
from paucal.data.decoded.in_memory import cache_images, estimate_decoded_bytes
from paucal.data.decoded.on_disk import (
    CacheFullError,
    EntryWriter,
    MappedEntry,
    MappedStore,
    StoredDigests,
    open_entry,
    read_table,
    source_digest,
)
from paucal.data.images import ImageSet
from paucal.data.stores import EncodedStore, locate
from paucal.data.unreadable import OnBad, ReportProgress, drop_unreadable, process_images, verify_images
from paucal.types import UserError
from paucal.wording import counted

FORMAT = 1  # version of the cache entries; must be increased if images are reduced in a different way
STREAM_SAMPLE = 256  # number of images of a streamed set that are verified
_MAX_READ_BYTES = 64 << 20  # largest file that is read into memory; larger files are decoded from disk
_STORED_SIDES = (64, 128, 512)  # shorter sides of stored images in pixels; larger sides are powers of two


def stored_side(image_size: Sequence[int]) -> int:
    """Return the shorter side in pixels of stored images for a network, at least twice the network's input side.

    A crop of a quarter of the area then needs no enlargement. Only a few sides are used, so networks with similar input
    sizes, such as the networks that `paucal train` tries one after the other, share stored images.
    """
    min_side = 2 * max(image_size)
    return next((side for side in _STORED_SIDES if side >= min_side), 1 << (min_side - 1).bit_length())


def prepare_images(
    image_set: ImageSet, options: DecodeOptions, on_bad: OnBad = "refuse", progress: ReportProgress | None = None
) -> tuple[ImageSet, list[str]]:
    """Verify every image once, and store all decoded images in a file that runs share.

    If the disk is too full, decoded images are kept in memory. If the memory is too small, images are only verified
    here, and decoded again each time they are read. `prepare_streamed_images` handles streamed images.

    The returned set has its final `options`: missing value ranges are measured if images have more than 8 bits per
    channel. The other arguments and the result are those of `verify_images`.
    """
    options, notes = measure_value_ranges(options, image_set)
    image_set = replace(image_set, notes=tuple(dict.fromkeys([*image_set.notes, *notes])))
    if image_set.stream is not None:
        return prepare_streamed_images(image_set, options, on_bad, progress)
    converted_set = image_set.with_decode_options(options)
    is_encoded = all(isinstance(locate(image_set.store, index)[0], EncodedStore) for index in range(len(image_set)))
    folder = usable_cache_folder() if is_encoded else None
    if folder is not None and estimate_decoded_bytes(converted_set) <= (max_bytes := usable_disk_bytes(folder)):
        try:
            return _PreparationPass(image_set, converted_set, folder, max_bytes, progress).run(on_bad)
        except (CacheFullError, OSError):  # the disk is full, or has less free space than reported
            pass
    return cache_images(converted_set, on_bad=on_bad, progress=progress)


class _PreparationPass:
    """Decodes a set into a cache entry, or reuses an existing entry; see `prepare_images`."""

    def __init__(
        self,
        image_set: ImageSet,
        converted_set: ImageSet,
        folder: Path,
        max_bytes: int,
        progress: ReportProgress | None,
    ) -> None:
        self.converted_set, self.folder, self.max_bytes = converted_set, folder, max_bytes
        self.progress = progress or (lambda done, total: None)
        self.locations = [locate(image_set.store, index) for index in range(len(image_set))]
        self.stamps = [store.stamp(position) for store, position in self.locations if isinstance(store, EncodedStore)]
        self.format_key = f"{FORMAT} {PIL.__version__} {converted_set.decode_options}"
        self.stored_digests = StoredDigests(folder, image_set.location)
        self.digests, self.is_known = self.stored_digests.look_up(self.stamps)
        self.error_by_index: dict[int, str] = {}
        self.n_done = 0

    def run(self, on_bad: OnBad) -> tuple[ImageSet, list[str]]:
        """Return the prepared set, and the keys of the unreadable images that it leaves out."""
        if not (self.is_known.all() and self._open_entry()):
            self._store_images()
        self.progress(len(self.locations), len(self.locations))
        readable_set, names = drop_unreadable(self.converted_set, self.error_by_index, on_bad)
        if (entry := self._open_entry()) is not None:
            readable_set = replace(readable_set, store=MappedStore(readable_set.store, entry))
        return readable_set, names

    def _store_images(self) -> None:
        # The entry and the row of each image that is stored in this format, by the digest of the original image.
        stored_images: dict[bytes, tuple[MappedEntry, int]] = {}
        for index in self.folder.glob(f"*{INDEX_SUFFIX}"):
            stored = None if index.name.endswith(f"{DIGESTS_SUFFIX}{INDEX_SUFFIX}") else read_table(index)
            if stored is None or stored[1] != self.format_key:
                continue
            if (entry := open_entry(self.folder, index.name.removesuffix(INDEX_SUFFIX))) is not None:
                stored_images |= {digest.tobytes(): (entry, row) for row, digest in enumerate(entry.table["digests"])}
        channels = self.converted_set.decode_options.channels
        with EntryWriter(self.folder, len(self.locations), self.max_bytes, channels) as writer:
            store_image = partial(self._store_image, writer=writer, stored_images=stored_images)
            self._process(np.flatnonzero(~self.is_known), store_image)
            # An entry already exists if the set is a copy, or if all new images are unreadable.
            if not self._open_entry():
                self._process(np.flatnonzero(self.is_known), store_image)
                readable = self._readable_positions()
                if len(readable):
                    writer.table["digests"][:] = self.digests
                    writer.finish(self._entry_key(), readable, self.format_key)
        readable = self._readable_positions()
        self.stored_digests.remember([self.stamps[index] for index in readable], self.digests[readable])
        evict_entries(self.folder, kept_pixels_path=self.folder / f"{self._entry_key()}{PIXELS_SUFFIX}")

    def _store_image(
        self, index: int, writer: EntryWriter, stored_images: dict[bytes, tuple[MappedEntry, int]]
    ) -> None:
        """Add an image to the entry: copied from another entry if possible, else decoded."""
        store, position = self.locations[index]
        assert isinstance(store, EncodedStore)
        source = None
        if not self.is_known[index]:
            source = _read_encoded_image(store, position)
            self.digests[index] = np.frombuffer(source_digest(source), dtype=np.uint8)
        location = stored_images.get(self.digests[index].tobytes())
        if location is not None and writer.copy(index, *location):
            return
        source = _read_encoded_image(store, position) if source is None else source
        image = decode_image(source, store.name(position), self.converted_set.decode_options)
        # If the shorter side is not the reduced side, the image has its original size, and its header need not be read.
        may_be_reduced = min(image.size) == self.converted_set.decode_options.side
        writer.add(index, image, store.size(position) if may_be_reduced else (image.height, image.width))

    def _process(self, indices: NDArray[np.int64], process_image: Callable[[int], None]) -> None:
        problems = process_images(
            len(indices),
            lambda row: process_image(int(indices[row])),
            lambda done, _: self.progress(self.n_done + done, len(self.locations)),
        )
        self.error_by_index.update({int(indices[row]): problem for row, problem in problems.items()})
        self.n_done += len(indices)

    def _readable_positions(self) -> NDArray[np.int64]:
        return np.setdiff1d(np.arange(len(self.locations)), list(self.error_by_index))

    def _open_entry(self) -> MappedEntry | None:
        return open_entry(self.folder, self._entry_key())

    def _entry_key(self) -> str:
        digest = hashlib.blake2b(self.format_key.encode(), digest_size=20)
        digest.update(self.digests[self._readable_positions()].tobytes())
        return digest.hexdigest()


def _read_encoded_image(store: EncodedStore, index: int) -> bytes | Path:
    """Return the bytes of an encoded image, or its path if the file is larger than 64 MiB."""
    try:
        source = store.source(index)
        if isinstance(source, bytes):
            return source
        status = source.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENODEV, "it is not a regular file (a pipe or a device, for instance)")
        return source.read_bytes() if status.st_size <= _MAX_READ_BYTES else source
    except OSError as problem:
        raise UnreadableImage(f"image {store.name(index)} cannot be decoded: {problem.strerror or problem}") from None


def prepare_streamed_images(
    image_set: ImageSet, options: DecodeOptions, on_bad: OnBad, progress: ReportProgress | None = None
) -> tuple[ImageSet, list[str]]:
    """Return a streamed set converted as `options` specify; verify a sample, or all images if some may be skipped."""
    converted_set = image_set.with_decode_options(options)
    if on_bad == "skip":  # all processes must leave out the same images
        return verify_images(converted_set, on_bad, progress)
    sampled = converted_set.sample(STREAM_SAMPLE)
    problems = process_images(len(sampled), lambda row: converted_set.store.check(int(sampled[row])), progress)
    if problems:
        first = min(problems)
        raise UserError(
            f"{len(problems)} of {counted(len(sampled), 'image')} that were tested cannot be read "
            f"({image_set.keys[int(sampled[first])]}); {problems[first]}; make the shards again, or leave unreadable "
            "images out with --on-bad-image skip, which first decodes every image of the set."
        )
    return converted_set, []
