"""Duplicate images: the same bytes, or nearly the same picture."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.checking.survey import Survey, near_pairs
from paucal.data.images import Store
from paucal.data.verify import for_each

ALIKE = 0.9  # least correlation of two pictures that may be the same
LEAST_CONTRAST = 0.02  # an image with less is blank, and its hash means nothing
LEAST_SIDE = 16  # pixels; smaller pictures of one class look like copies
CANDIDATE_SIDE = 64  # pixels of the shorter side that candidates are decoded to, where that saves time
_SIDE = 24  # pixels at which pictures are compared
_AT_ONCE = 4096  # pairs whose pixels are held as floats at once
_LEAST_NORM = 1e-6  # of the pixels of two pictures; below it one of them is blank


@dataclass(frozen=True, slots=True)
class Pair:
    """Two images that look alike.

    Attributes:
        first: Position in the set.
        second: Later position in the set.
        likeness: Correlation of their pixels at 24 x 24, at most 1.
        features: Cosine of their frozen features; None without features.
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
    images that share only a layout. The first of a group of equal files stands for all. Images of under 16 pixels are
    left out: two eights of 8 x 8 pixels look as alike as two copies.

    Args:
        survey: Survey of the set.
        store: Pixels of the set; only candidates are read again, and 64 pixels a side are enough.
    """
    first_of = {survey.digests[group[0]]: group[0] for group in exact_groups(survey.digests)}
    usable = [
        position
        for position in survey.readable.tolist()
        if survey.contrast[position] >= LEAST_CONTRAST
        and survey.sizes[position].min() >= LEAST_SIDE
        and first_of.get(survey.digests[position], position) == position
    ]
    positions = np.asarray(usable, dtype=np.int64)
    candidates = positions[near_pairs(survey.hashes[positions])]
    likeness = _correlations(candidates, store)
    return [
        Pair(int(left), int(right), float(alike))
        for (left, right), alike in zip(candidates[likeness >= ALIKE], likeness[likeness >= ALIKE], strict=True)
    ]


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


def _correlations(candidates: NDArray[np.int64], store: Store) -> NDArray[np.float32]:
    """Return the (P,) correlations of the small pictures of (P, 2) candidates; each picture is read once."""
    different, places = np.unique(candidates, return_inverse=True)
    pictures = np.zeros((len(different), _SIDE * _SIDE * 3), dtype=np.uint8)

    def look(place: int) -> None:
        picture = store.read(int(different[place])).resize((_SIDE, _SIDE), Image.Resampling.BOX)
        pictures[place] = np.asarray(picture).reshape(-1)

    for_each(len(different), look, None, None)  # images missing since the survey stay black, and match nothing
    rows = places.reshape(-1, 2)
    # In pieces whose pixels fit in memory as floats: a set of video frames has millions of pairs.
    pieces = [rows[begin : begin + _AT_ONCE] for begin in range(0, len(rows), _AT_ONCE)]
    found = [_pixel_correlation(pictures[some[:, 0]], pictures[some[:, 1]]) for some in pieces]
    return np.concatenate([np.zeros(0, dtype=np.float32), *found])


def _pixel_correlation(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the correlation of each row of (P, D) pixels with that of the other; 0 if one of them is blank."""
    first, second = (one.astype(np.float32) - one.mean(1, dtype=np.float32, keepdims=True) for one in (left, right))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.einsum("pd,pd->p", first, second) / np.maximum(norms, _LEAST_NORM)
