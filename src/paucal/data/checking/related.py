"""Related images of a set: the same bytes, similar pixels, or names that suggest a group (frames of a video)."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.checking.survey import Survey, near_pairs
from paucal.data.images import ImageSet
from paucal.data.splits.part_names import PARTS
from paucal.data.stores import Store
from paucal.data.unreadable import for_each

ALIKE = 0.9  # smallest correlation of similar images
MIN_CONTRAST = 0.02  # an image with less contrast is blank, and its hash is arbitrary
MIN_SIDE = 16  # pixels; smaller images of one class would count as copies of each other
CANDIDATE_SIDE = 64  # pixels of the shorter side that candidates are decoded to
_SIDE = 24  # pixels at which images are compared
_AT_ONCE = 4096  # pairs whose pixels are held as floats at a time
_MIN_NORM = 1e-6  # smallest norm of the pixels of two images that are not blank
MIN_MEAN = 2.0  # smallest mean number of images in a suggested group
MIN_SHARE = 0.5  # smallest share of the images whose names match
# Text with a number before the last number of a name: patient12_slice003, v3-0001.
_NAME = r"[^/]*\d[^/]*?)[-_.\s]+[A-Za-z]*[-_.\s]?\(?\d+\)?"
_ENDING = r"\.[^./#]+$"  # excludes rows of a file (train-00001-of-00003.parquet#7), which have no names of their own
PATTERN = f"({_NAME}{_ENDING}"
_RUNNING = re.compile(rf"\.tar/.*-(\d{{8}}){_ENDING}")  # number of an image in shards of `paucal shard`


@dataclass(frozen=True, slots=True)
class Pair:
    """Two similar images: their positions in the set, and the correlation of their pixels at 24 x 24, at most 1.

    `features` is the cosine of their frozen features, if these were computed.
    """

    first: int
    second: int
    likeness: float
    features: float | None = None


def exact_groups(digests: Sequence[bytes]) -> list[list[int]]:
    """Return groups of two or more positions whose images have the same digest, in the order of the set.

    Example:
        >>> exact_groups([b"a", b"b", b"a", b"", b""])
        [[0, 2]]
    """
    groups: dict[bytes, list[int]] = {}
    for position, digest in enumerate(digests):
        if digest:
            groups.setdefault(digest, []).append(position)
    return [group for group in groups.values() if len(group) > 1]


def similar_pairs(survey: Survey, store: Store) -> list[Pair]:
    """Return pairs of similar images with different bytes, in the order of the set.

    Candidates have similar perceptual hashes; their pixels at 24 x 24 must correlate by 0.9 or more, which excludes
    images that share only a layout. Only candidates are read from the store again, for which 64 pixels per side are
    enough. The first of a group of equal files represents all. Images below 16 pixels are left out, since two digits of
    8 x 8 pixels are as similar as two copies.
    """
    first_of = {survey.digests[group[0]]: group[0] for group in exact_groups(survey.digests)}
    usable = [
        position
        for position in survey.readable.tolist()
        if survey.contrast[position] >= MIN_CONTRAST
        and survey.sizes[position].min() >= MIN_SIDE
        and first_of.get(survey.digests[position], position) == position
    ]
    positions = np.asarray(usable, dtype=np.int64)
    candidates = positions[near_pairs(survey.hashes[positions])]
    likeness = _correlations(candidates, store)
    return [
        Pair(int(left), int(right), float(similarity))
        for (left, right), similarity in zip(candidates[likeness >= ALIKE], likeness[likeness >= ALIKE], strict=True)
    ]


def merge_groups(groups: Iterable[Sequence[int]]) -> list[list[int]]:
    """Join groups that share a member; return them ascending, in the order of their first members.

    Example:
        >>> merge_groups([[4, 7], [1, 2], [7, 9]])
        [[1, 2], [4, 7, 9]]
    """
    parent: dict[int, int] = {}

    def root(member: int) -> int:
        while parent.setdefault(member, member) != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for first, *other_members in groups:
        for other in other_members:
            low, high = sorted((root(first), root(other)))
            parent[high] = low
    merged: dict[int, list[int]] = {}
    for member in sorted(parent):
        merged.setdefault(root(member), []).append(member)
    return list(merged.values())


def _correlations(candidates: NDArray[np.int64], store: Store) -> NDArray[np.float32]:
    """Return the (P,) correlations of the reduced images of (P, 2) candidates; each image is read once."""
    images, inverse = np.unique(candidates, return_inverse=True)
    pictures = np.zeros((len(images), _SIDE * _SIDE * 3), dtype=np.uint8)

    def reduce_image(place: int) -> None:
        picture = store.read(int(images[place])).resize((_SIDE, _SIDE), Image.Resampling.BOX)
        pictures[place] = np.asarray(picture).reshape(-1)

    for_each(len(images), reduce_image, None, None)  # images removed after the survey stay black and match nothing
    rows = inverse.reshape(-1, 2)
    # Pairs are compared in pieces that fit in memory: a set of video frames has millions of pairs.
    pieces = [rows[begin : begin + _AT_ONCE] for begin in range(0, len(rows), _AT_ONCE)]
    correlations = [_pixel_correlation(pictures[piece[:, 0]], pictures[piece[:, 1]]) for piece in pieces]
    return np.concatenate([np.zeros(0, dtype=np.float32), *correlations])


def _pixel_correlation(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the (P,) correlations of matching rows of two (P, D) arrays of pixels; 0 if either row is blank."""
    first, second = (rows.astype(np.float32) - rows.mean(1, dtype=np.float32, keepdims=True) for rows in (left, right))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.einsum("pd,pd->p", first, second) / np.maximum(norms, _MIN_NORM)


@dataclass(frozen=True)
class NameGroups:
    """Groups of images, as suggested by the names of their files.

    Attributes:
        names: Name of the group of each of N images.
        count: Number of groups.
        largest: Number of images in the largest group.
        examples: Two file names of one group.
        pattern: Regular expression whose first group is the name of the group, as `--group-by` takes it.
        across: Pattern of groups that span folders; "" if no name occurs in two folders.
        shared: Name that occurs in several folders, or "".
    """

    names: list[str]
    count: int
    largest: int
    examples: tuple[str, str]
    pattern: str
    across: str = ""
    shared: str = ""


def group_name(key: str, pattern: str = PATTERN) -> str | None:
    """Return the first group of a pattern's match in a key, or the whole match without a group; None without a match.

    Example:
        >>> group_name("cat/patient12_slice003.png"), group_name("cat/0001.jpg")
        ('patient12', None)
    """
    match = re.search(pattern, key)
    if match is None:
        return None
    return match[1] if match.re.groups else match[0]


def suggested_groups(images: ImageSet) -> NameGroups | None:
    """Return the groups that the names of a set suggest; None for no groups.

    A name suggests a group if it ends in a number, such as that of a frame, and has an earlier number, such as that of
    a video or a patient. The text before the last number is the group. At least half of the names must have this form,
    with at least two images per group on average and at least two groups in every class, so names that only number the
    images of a class (`cat_0001.jpg`, `img_2024_0001.jpg`) suggest nothing.

    A name that occurs in several folders may be one group (a patient) or several (each class counts its videos): then
    each folder has its own groups, and the pattern `across` joins them.
    """
    within, across = _group_patterns(images)
    names = [group_name(key, within) for key in images.keys]
    across_names = [group_name(key, across) for key in images.keys]
    folders = {name: last for name, last in zip(names, across_names, strict=True) if name and last}
    shared = [name for name, count in Counter(folders.values()).items() if count > 1]
    if not shared:
        within, names = across, across_names
    group_names = [name for name in names if name is not None]
    if len(group_names) < max(2, MIN_SHARE * len(names)):
        return None
    counts = Counter(group_names)
    repeated = sum(count for count in counts.values() if count > 1)
    if len(group_names) / len(counts) < MIN_MEAN or repeated < MIN_SHARE * len(names) or len(counts) < 2:
        return None
    if not (_several_in_each_class(names, images) and _several_in_each_class(across_names, images)):
        return None
    largest, size = counts.most_common(1)[0]
    examples = [key.rsplit("/", 1)[-1] for key, name in zip(images.keys, names, strict=True) if name == largest]
    groups = [key if name is None else name for key, name in zip(images.keys, names, strict=True)]
    across_pattern = (across, shared[0]) if shared else ("", "")
    return NameGroups(groups, len(counts), size, (examples[0], examples[1]), within, *across_pattern)


def _group_patterns(images: ImageSet) -> tuple[str, str]:
    """Return the pattern of groups within folders, and the pattern of groups across folders.

    Split folders such as `train` and names of shards are not part of a group's name. The running number that `paucal
    shard` adds to each image does not count as the number of a frame.
    """
    begin, ending, keys = "^", _ENDING, list(images.keys)
    if all(".tar/" in key for key in keys):
        begin, keys = r"\.tar/", [key.partition(".tar/")[2] for key in keys]
        numbers = [match[1] for key in images.keys if (match := _RUNNING.search(key))]
        if len(set(numbers)) == len(keys):  # each image has its own number
            ending = rf"-\d{{8}}{_ENDING}"
    if all(key.partition("/")[0].lower() in PARTS and "/" in key for key in keys):
        begin += "[^/]+/"
    return f"{begin}((?:.*/)?{_NAME}{ending}", f"({_NAME}{ending}"


def _several_in_each_class(names: Sequence[str | None], images: ImageSet) -> bool:
    groups_by_class: dict[int, set[str]] = {}
    for name, label in zip(names, images.labels.tolist(), strict=True):
        if name is not None:
            groups_by_class.setdefault(label, set()).add(name)
    return all(len(groups) > 1 for groups in groups_by_class.values())
