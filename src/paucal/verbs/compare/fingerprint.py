"""A fingerprint of a set of images, to notice that it has changed since a comparison began."""

import hashlib

from paucal.data.checking.survey import digest_of
from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, locate, spread
from paucal.data.sources.stores import EncodedStore

MOST_READ = 2000  # images whose bytes are hashed; of the others only name, class, part and size


def fingerprint(images: ImageSet) -> str:
    """Return a digest of the names, classes and parts of all images, of their sizes, and of the bytes of up to 2000.

    It is the same wherever the set is copied to.
    """
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr(images.classes).encode())
    for key, label, part in zip(images.keys, images.labels.tolist(), images.declared, strict=True):
        digest.update(f"{key!r} {label} {part}\n".encode())
    for index in range(len(images)):
        digest.update(_size(images, index))
    for index in spread(len(images), MOST_READ).tolist():
        try:
            digest.update(digest_of(images.store, index))
        except UnreadableImage:
            digest.update(b"unreadable")
    return digest.hexdigest()


def _size(images: ImageSet, index: int) -> bytes:
    """Return the file size of an image as text, if it is known without reading the file."""
    store, place = locate(images.store, index)
    stamp = store.stamp(place) if isinstance(store, EncodedStore) else None
    return b"-" if stamp is None else str(stamp.size).encode()
