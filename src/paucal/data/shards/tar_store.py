"""Random access to the images of tar shards: one read for each, where the index says."""

from paucal.data.decode import UnreadableImage
from paucal.data.shards.index import HEADER, Shard, ShardIndex
from paucal.data.shards.place import Place
from paucal.data.shards.texts import Texts
from paucal.data.sources.stores import EncodedStore, Stamp

_SIZE = slice(124, 136)  # where a tar header says how large the member is


class TarStore(EncodedStore):
    """Images of tar shards.

    Args:
        place: where the shards lie.
        index: where the images lie in them.
        keys: of the images, for messages.
    """

    def __init__(self, place: Place, index: ShardIndex, keys: Texts) -> None:
        self._place, self._index, self._keys = place, index, keys

    def __len__(self) -> int:
        return len(self._index)

    def name(self, index: int) -> str:
        """Return the key."""
        return self._keys[index]

    def stamp(self, index: int) -> Stamp:
        """Return the image's place in the index."""
        shard = self._index.files[int(self._index.shards[index])]
        return Stamp(f"{self._place.location}/{self._keys[index]}", int(self._index.lengths[index]), shard.changed)

    def source(self, index: int) -> bytes:
        """Return the bytes of an image.

        Raises:
            UnreadableImage: the shard is missing, cannot be fetched, or is not the one that was indexed.
        """
        length, shard = int(self._index.lengths[index]), self._index.files[int(self._index.shards[index])]
        try:
            content = self._read(shard, int(self._index.offsets[index]) - HEADER, HEADER + length)
        except OSError as problem:
            reason = problem.strerror or problem
            raise UnreadableImage(f"image {self.name(index)} cannot be read from its shard: {reason}") from None
        if len(content) < HEADER + length or size_in_header(content) != length:
            raise UnreadableImage(
                f"image {self.name(index)} is not where the index says: the shard was changed or cut off since; index "
                "the shards again"
            )
        return content[HEADER:]

    def _read(self, shard: Shard, start: int, count: int) -> bytes:
        # Opened for each image, as forked processes would share the place in a file that stays open.
        for last in (False, True):
            try:
                with open(self._place.path(shard), "rb", buffering=0) as file:
                    file.seek(start)
                    return file.read(count)
            except FileNotFoundError:  # a fetched one that had to make room for another in between
                if last:
                    raise
        raise AssertionError


def size_in_header(content: bytes) -> int | None:
    """Return the size that a tar header says its member has; None where it is no header."""
    try:
        return int(content[_SIZE].rstrip(b" \0") or b"-1", 8)
    except ValueError:
        return None
