"""Read the input images of commands such as predict, in order: paths, folders, patterns and images in memory."""

import glob
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image

from paucal.data.arguments import ImageInMemory
from paucal.data.channels.decoding import convert_image
from paucal.data.channels.pixel_format import bit_depth_notes
from paucal.data.decode import DecodeOptions, UnreadableImage
from paucal.data.images import ImageSet
from paucal.data.shards.folders import is_remote
from paucal.data.sources.opening import open_images
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.stores import ConvertedStore, EncodedStore, locate
from paucal.runner.console import Console
from paucal.types import UserError
from paucal.wording import counted

NamedImage = tuple[str | None, Image.Image]


@dataclass(frozen=True)
class MemoryImage:
    """An image in memory, used in place of an `ImageSet`."""

    picture: ImageInMemory

    def __len__(self) -> int:
        return 1


def open_sources(
    sources: Sequence[str | ImageInMemory], console: Console, decode_options: DecodeOptions
) -> list[ImageSet | MemoryImage]:
    """Open image files, folders (to any depth), Parquet files, URLs, patterns and images in memory; print notes."""
    image_sets: list[ImageSet | MemoryImage] = []
    for source in sources:
        image_sets += _open_path(source, console) if isinstance(source, str) else [MemoryImage(source)]
    for images in image_sets:
        for note in (*images.notes, *bit_depth_notes(images, decode_options)) if isinstance(images, ImageSet) else ():
            console.say(f"note: {note}")
    return image_sets


class InputImages:
    """All images of several sources as one sequence, decoded with the model's options.

    The methods take the position of an image in this sequence.
    """

    def __init__(self, sources: Sequence[ImageSet | MemoryImage], decode_options: DecodeOptions) -> None:
        self._sources, self._decode_options = sources, decode_options
        self._end_positions = list(accumulate(map(len, sources)))
        self._stores = [
            None if isinstance(source, MemoryImage) else ConvertedStore(source.store, decode_options)
            for source in sources
        ]

    def __len__(self) -> int:
        return self._end_positions[-1] if self._end_positions else 0

    def name(self, position: int) -> str | None:
        """Return the path of an image; None if it is an image in memory."""
        source_index, index = self._source_and_index(position)
        images = self._sources[source_index]
        return None if isinstance(images, MemoryImage) else path_of_image(images, images.keys[index])

    def stamp(self, position: int) -> str:
        """Return the size and modification time of an image's file as text; "" if the image has no file of its own."""
        source_index, index = self._source_and_index(position)
        images = self._sources[source_index]
        if isinstance(images, MemoryImage):
            return ""
        store, row = locate(images.store, index)
        stamp = store.stamp(row) if isinstance(store, EncodedStore) else None
        return "" if stamp is None else f"{stamp.size} {stamp.modified_ns}"

    def read(self, position: int) -> Image.Image:
        """Return a decoded image; raise `UnreadableImage` if the image cannot be decoded."""
        source_index, index = self._source_and_index(position)
        store, images = self._stores[source_index], self._sources[source_index]
        if isinstance(images, MemoryImage):
            try:
                return convert_image(images.picture, self._decode_options)
            except ValueError as problem:
                raise UnreadableImage(f"image {position + 1} cannot be used: {problem}") from problem
        assert store is not None
        return store.read(index)

    def read_or_skip(self, position: int, on_bad: str, console: Console) -> Image.Image | UnreadableImage:
        """Return a decoded image, or print and return the error; with "refuse" as `on_bad`, raise the error."""
        try:
            return self.read(position)
        except UnreadableImage as problem:
            if on_bad == "refuse":
                raise UserError(f"{problem}; leave this image out with --on-bad-image skip.") from problem
            console.say(f"skipped: {problem}")
            return problem

    def _source_and_index(self, position: int) -> tuple[int, int]:
        """Return the index of an image's source, and the image's index in that source."""
        source_index = bisect_right(self._end_positions, position)
        start = self._end_positions[source_index - 1] if source_index else 0
        return source_index, position - start


def read_all(
    sources: Sequence[ImageSet | MemoryImage], decode_options: DecodeOptions, on_bad: str, console: Console
) -> Iterator[NamedImage]:
    """Yield (path, image) for each image that `read_or_skip` returns; the path of an image in memory is None."""
    images = InputImages(sources, decode_options)
    for position in range(len(images)):
        image = images.read_or_skip(position, on_bad, console)
        if not isinstance(image, UnreadableImage):
            yield images.name(position), image


def _open_path(path: str, console: Console) -> Iterator[ImageSet]:
    """Yield the images at a path or URL, or the images at each match of a pattern."""
    if is_remote(path):
        advice = f"single images must be files, but {path!r} is a URL: download the image, and give the file."
        if urlsplit(path).path.lower().endswith(IMAGE_SUFFIXES):
            raise UserError(advice)
        try:
            images = open_images(path, labelled=False)
        except UserError as problem:
            raise UserError(f"{str(problem).removesuffix('.')}; {advice}") from problem
        yield images
        return
    if Path(path).exists() or not glob.has_magic(path):
        yield open_images(path, labelled=False)
        return
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise UserError(f"the pattern {path!r} matches no file: check the spelling.")
    image_paths = [match for match in matches if _has_images(Path(match))]
    if not image_paths:
        files = "1 file, which is not an image" if len(matches) == 1 else f"{len(matches)} files, but no image"
        raise UserError(f"the pattern {path!r} matches {files}.")
    if len(image_paths) < len(matches):
        n_others = len(matches) - len(image_paths)
        predicate = "is not an image" if n_others == 1 else "are not images"
        console.say(f"{counted(n_others, 'match', 'matches')} of {path!r} {predicate}")
    for image_path in image_paths:
        yield open_images(image_path, labelled=False)


def _has_images(path: Path) -> bool:
    """Return whether a path is an image, a Parquet file, or a folder that contains such a file at any depth."""
    if path.is_dir():
        return any(_has_images(Path(folder, name)) for folder, _, names in os.walk(path) for name in names)
    return path.name.lower().endswith((*IMAGE_SUFFIXES, ".parquet"))


def path_of_image(images: ImageSet, key: str) -> str:
    """Return the path of the image with the key `key` in an image set."""
    root = Path(images.location)
    return str(root / key) if root.is_dir() else str(root if root.name == key else root.parent / key)
