"""The images of any set as encoded bytes, checked, in the order in which shards are to hold them."""

import io
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.cores import usable_cores
from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, locate
from paucal.data.randomness import derive_seed
from paucal.data.shards.texts import taken
from paucal.data.sources.folder import IMAGE_SUFFIXES
from paucal.data.sources.stores import EncodedStore
from paucal.data.verify import ReportProgress

_CHUNK = 256  # images that are read and checked at once
_MOST_THREADS = 16
_ODD = re.compile(r"[^A-Za-z0-9_/-]+")
_MOST_NAME = 60  # characters; a tar header holds a hundred


@dataclass(frozen=True)
class Member:
    """An image as it goes into a shard.

    Attributes:
        position: in its set.
        content: encoded.
        suffix: of its file's name.
        key: its identity in its set.
    """

    position: int
    content: bytes
    suffix: str
    key: str

    def stem(self, number: int) -> str:
        """Return a name without an ending that no other image has: its old one, as far as a tar can hold it."""
        plain = _ODD.sub("_", os.path.splitext(self.key)[0]).strip("/")[-_MOST_NAME:].lstrip("/")
        return f"{plain}-{number:08d}" if plain else f"{number:08d}"


def shard_order(images: ImageSet, part: str, seed: int) -> NDArray[np.int64]:
    """Return the positions of a part's images in random order, which depends on the seed alone.

    Whatever a shard holds is then a sample of all, so that a window over a few of them mixes classes.
    """
    positions = np.flatnonzero(np.asarray(images.declared, dtype="<U6") == part)
    generator = np.random.default_rng(derive_seed(seed, len(positions)))
    if images.stream is not None:  # from shards to shards: neighbours are read together
        return positions[images.stream.take(positions).order(generator)]
    return positions[generator.permutation(len(positions))]


def members(
    images: ImageSet, order: NDArray[np.int64], bad: dict[int, str], progress: ReportProgress | None = None
) -> Iterator[Member]:
    """Yield the images that can be decoded, with their bytes as they are; those of arrays as PNG.

    Args:
        images: the set.
        order: positions.
        bad: is filled with why an image cannot be read, by position.
        progress: called with (images done, images in all).
    """
    with ThreadPoolExecutor(min(_MOST_THREADS, usable_cores())) as pool:
        for first in range(0, len(order), _CHUNK):
            positions = order[first : first + _CHUNK]
            read = pool.map(lambda position: _encoded(images, position), positions.tolist())
            keys = taken(images.keys, positions)
            for position, key, found in zip(positions.tolist(), keys, read, strict=True):
                if isinstance(found, str):
                    bad[position] = found
                else:
                    yield Member(position, *found, key)
            if progress is not None:
                progress(first + len(positions), len(order))


def _encoded(images: ImageSet, position: int) -> tuple[bytes, str] | str:
    """Return the bytes of an image and the ending they need; why it cannot be read where that is so."""
    store, place = locate(images.store, position)
    try:
        if not isinstance(store, EncodedStore):
            buffer = io.BytesIO()
            store.read(place).save(buffer, "PNG")
            return buffer.getvalue(), ".png"
        store.check(place)
        source = store.source(place)
        content = source.read_bytes() if isinstance(source, Path) else source
        return content, _suffix(source, content)
    except UnreadableImage as problem:
        return str(problem)
    except OSError as problem:
        return f"image {images.keys[position]} cannot be read: {problem.strerror or problem}"


def _suffix(source: bytes | Path, content: bytes) -> str:
    """Return the ending of an image's name: its file's, else what its format is usually called."""
    if isinstance(source, Path) and source.suffix.lower() in IMAGE_SUFFIXES:
        return source.suffix.lower()
    with Image.open(io.BytesIO(content)) as image:
        form = (image.format or "png").lower()
    return {"jpeg": ".jpg", "tiff": ".tif", "jpeg2000": ".jp2", "ppm": ".ppm"}.get(form, f".{form}")
