"""Images that are there more than once: the same bytes, or nearly the same picture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.checking.perceptual_hash import near_pairs
from paucal.data.checking.survey import Survey
from paucal.data.decode import UnreadableImage
from paucal.data.images import Store

ALIKE = 0.9  # correlation of two pictures from which on they may be one
LEAST_CONTRAST = 0.02  # of an image whose hash says something: less is a blank one
LEAST_SIDE = 16  # pixels, under which different pictures of one class can no longer be told from copies
_SIDE = 24  # pixels at which pictures are compared


@dataclass(frozen=True)
class Pair:
    """Two images that look alike.

    Attributes:
        first: position in the set.
        second: position in the set, a later one.
        likeness: correlation of their pixels at 24 x 24, at most 1.
        features: cosine of their frozen features; None where these were not at hand.
    """

    first: int
    second: int
    likeness: float
    features: float | None = None


def exact_groups(digests: Sequence[bytes]) -> list[list[int]]:
    """Return the positions of images with the same digest, groups of two and more, in the order of the set.

    Example:
        >>> exact_groups([b"a", b"b", b"a", b"", b""])
        [[0, 2]]
    """
    groups: dict[bytes, list[int]] = {}
    for position, digest in enumerate(digests):
        if digest:
            groups.setdefault(digest, []).append(position)
    return [group for group in groups.values() if len(group) > 1]


def alike_pairs(survey: Survey, store: Store) -> list[Pair]:
    """Return pairs of images that are not the same file and look alike, in the order of the set.

    A hash of 64 bits finds the candidates; their pixels at 24 x 24 must then correlate by 0.9 or more, which leaves out
    what shares no more than a layout. Of a group of equal files the first stands for all. Images of under 16 pixels are
    left out: two eights of 8 x 8 pixels look as alike as two copies.

    Args:
        survey: of the set.
        store: its pixels; candidates alone are read again.
    """
    first_of = {survey.digests[group[0]]: group[0] for group in exact_groups(survey.digests)}
    told = [
        position
        for position in survey.readable.tolist()
        if survey.contrast[position] >= LEAST_CONTRAST
        and survey.sizes[position].min() >= LEAST_SIDE
        and first_of.get(survey.digests[position], position) == position
    ]
    positions = np.asarray(told, dtype=np.int64)
    found, seen = [], _Thumbnails(store)
    for left, right in positions[near_pairs(survey.hashes[positions])].tolist():
        likeness = seen.correlation(left, right)
        if likeness >= ALIKE:
            found.append(Pair(left, right, likeness))
    return found


def joined(groups: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return groups in which all that share a member are one, each ascending, in the order of their first members.

    Example:
        >>> joined([[4, 7], [1, 2], [7, 9]])
        [[1, 2], [4, 7, 9]]
    """
    parent: dict[int, int] = {}

    def root(one: int) -> int:
        while parent.setdefault(one, one) != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    for first, *others in groups:
        for other in others:
            low, high = sorted((root(first), root(other)))
            parent[high] = low
    found: dict[int, list[int]] = {}
    for one in sorted(parent):
        found.setdefault(root(one), []).append(one)
    return list(found.values())


class _Thumbnails:
    """Small pictures of candidates, each read once; only the last few thousand are kept."""

    MOST = 20_000

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[int, NDArray[np.float32]] = {}

    def correlation(self, left: int, right: int) -> float:
        first, second = self._of(left), self._of(right)
        return float(first @ second)

    def _of(self, position: int) -> NDArray[np.float32]:
        if position not in self._kept:
            if len(self._kept) >= self.MOST:
                self._kept.clear()
            self._kept[position] = self._read(position)
        return self._kept[position]

    def _read(self, position: int) -> NDArray[np.float32]:
        try:
            picture = self._store.read(position).resize((_SIDE, _SIDE), Image.Resampling.BOX)
        except UnreadableImage:  # gone since the survey
            return np.zeros(_SIDE * _SIDE * 3, dtype=np.float32)
        pixels = np.asarray(picture, dtype=np.float32).reshape(-1)
        centred = pixels - pixels.mean()
        return centred / max(float(np.linalg.norm(centred)), 1e-6)
