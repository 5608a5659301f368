"""What images show, told by a hash of their pixels, which is computed once for every file and remembered."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import PIL
from numpy.typing import NDArray

from paucal.data.decoded.folder import usable_folder
from paucal.data.decoded.known import DIGEST, KnownImages
from paucal.data.decoded.read_as import whole_image
from paucal.data.images import ImageSet, locate_original
from paucal.data.maps.store import content_hash
from paucal.data.sources.stores import EncodedStore, Stamp

Advance = Callable[[int, int], None]


def content_hashes(
    images: ImageSet, positions: Sequence[int] | NDArray[np.int64], advance: Advance | None = None
) -> list[str]:
    """Return the hash of what each image shows at full size, as `content_hash`.

    Files that are where they were, of the same size and time of change, are not decoded again: the hashes lie in the
    cache of images, as those of their bytes do.

    Args:
        images: the set.
        positions: of the images in it.
        advance: called with (images done, images in all).

    Raises:
        UnreadableImage: an image cannot be read.
    """
    stamps = [_stamp(images, int(position)) for position in positions]
    memory = _memory(images)
    digests = np.zeros((len(stamps), DIGEST), dtype=np.uint8)
    known = np.zeros(len(stamps), dtype=bool)
    if memory is not None:
        digests, known = memory.look_up(stamps)
    new = np.flatnonzero(~known)
    for done, row in enumerate(new.tolist()):
        found = bytes.fromhex(content_hash(whole_image(images, int(positions[row]))))
        digests[row] = np.frombuffer(found, dtype=np.uint8)
        if advance is not None:
            advance(len(stamps) - len(new) + done + 1, len(stamps))
    if advance is not None and not len(new):
        advance(len(stamps), len(stamps))
    if memory is not None and any(stamps[row] is not None for row in new):
        memory.remember([stamps[row] for row in new], digests[new])
    return [digest.tobytes().hex() for digest in digests]


def _memory(images: ImageSet) -> KnownImages | None:
    """Return what is remembered of images that are read like this, by this Pillow; None where nothing is kept."""
    folder = usable_folder()
    if folder is None:
        return None
    whole = replace(images.reading, side=None)
    return KnownImages(folder, f"{images.location}\ncontents {PIL.__version__} {whole}")


def _stamp(images: ImageSet, position: int) -> Stamp | None:
    """Return what an image itself is recognised by, also where a decoded copy is shown."""
    store, place = locate_original(images.store, position)
    return store.stamp(place) if isinstance(store, EncodedStore) else None
