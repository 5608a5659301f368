"""Related images of a set: images with the same bytes, similar pixels, or names that suggest a group (video frames)."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.checking.image_hashes import find_near_pairs
from paucal.data.checking.survey import Survey
from paucal.data.images import ImageSet
from paucal.data.splits.part_names import PART_BY_WORD
from paucal.data.stores import Store
from paucal.data.unreadable import process_images

MIN_CORRELATION = 0.9  # smallest correlation of the pixels of two similar images
MIN_CONTRAST = 0.02  # images with a smaller standard deviation of the brightness are blank, so their hash is arbitrary
MIN_SIDE = 16  # smallest side in pixels of compared images; smaller images of one class all look like copies
CANDIDATE_SIDE = 64  # pixels to which the shorter side of candidates is reduced
_COMPARED_SIDE = 24  # side in pixels to which images are reduced for the comparison
_CHUNK_PAIRS = 4096  # pairs whose pixels are converted to floats at a time
_MIN_NORM = 1e-6  # avoids division by 0 for blank images
MIN_GROUP_MEAN = 2.0  # smallest mean number of images per suggested group
MIN_MATCHED_FRACTION = 0.5  # smallest fraction of the images whose names match the pattern
# A name with two numbers. The text before the last number is captured: patient12 of patient12_slice003, v3 of v3-0001.
_NAME_PATTERN = r"[^/]*\d[^/]*?)[-_.\s]+[A-Za-z]*[-_.\s]?\(?\d+\)?"
_ENDING_PATTERN = r"\.[^./#]+$"  # excludes keys of table rows (train-00001-of-00003.parquet#7)
GROUP_PATTERN = f"({_NAME_PATTERN}{_ENDING_PATTERN}"
_SHARD_NUMBER = re.compile(rf"\.tar/.*-(\d{{8}}){_ENDING_PATTERN}")  # the number that `paucal shard` gives an image


@dataclass(frozen=True, slots=True)
class SimilarPair:
    """Positions of two similar images, and the correlation of their pixels at 24 x 24."""

    first: int
    second: int
    correlation: float
    cosine: float | None = None  # cosine similarity of the frozen features; None if these were not computed


def group_by_digest(digests: Sequence[bytes]) -> list[list[int]]:
    """Return groups of two or more positions with equal digests, in the order of the set; empty digests are ignored."""
    groups: dict[bytes, list[int]] = {}
    for position, digest in enumerate(digests):
        if digest:
            groups.setdefault(digest, []).append(position)
    return [group for group in groups.values() if len(group) > 1]


def find_similar_pairs(survey: Survey, store: Store) -> list[SimilarPair]:
    """Return pairs of similar images with different bytes, in the order of the set.

    Candidates have similar perceptual hashes. The correlation of their pixels at 24 x 24 must be at least 0.9, which
    excludes images that share only a layout. Only candidates are read from the store again; images of 64 pixels per
    side are enough. If several files have equal bytes, only the first file is compared. Images smaller than 16 pixels
    are left out: two different images of a digit at 8 x 8 pixels, for example, are as similar as two copies.
    """
    first_by_digest = {survey.digests[group[0]]: group[0] for group in group_by_digest(survey.digests)}
    usable = [
        position
        for position in survey.readable_positions.tolist()
        if survey.contrast[position] >= MIN_CONTRAST
        and survey.sizes[position].min() >= MIN_SIDE
        and first_by_digest.get(survey.digests[position], position) == position
    ]
    positions = np.asarray(usable, dtype=np.int64)
    candidates = positions[find_near_pairs(survey.hashes[positions])]
    correlations = _compute_correlations(candidates, store)
    rows = zip(candidates.tolist(), correlations.tolist(), correlations >= MIN_CORRELATION, strict=True)
    return [SimilarPair(first, second, correlation) for (first, second), correlation, is_similar in rows if is_similar]


def merge_groups(groups: Iterable[Sequence[int]]) -> list[list[int]]:
    """Merge groups that share a member; members and groups are returned in ascending order."""
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


def _compute_correlations(candidates: NDArray[np.int64], store: Store) -> NDArray[np.float32]:
    """Return the (P,) correlations of the reduced images of (P, 2) pairs of positions; each image is read once."""
    images, inverse = np.unique(candidates, return_inverse=True)
    pixels = np.zeros((len(images), _COMPARED_SIDE * _COMPARED_SIDE * 3), dtype=np.uint8)

    def reduce_image(row: int) -> None:
        image = store.read(int(images[row])).resize((_COMPARED_SIDE, _COMPARED_SIDE), Image.Resampling.BOX)
        pixels[row] = np.asarray(image).reshape(-1)

    process_images(len(images), reduce_image)  # unreadable images stay black, with correlation 0
    rows = inverse.reshape(-1, 2)
    correlations = np.zeros(len(rows), dtype=np.float32)
    # Pairs are compared in chunks that fit in memory, since a set of video frames has millions of pairs.
    for begin in range(0, len(rows), _CHUNK_PAIRS):
        chunk = slice(begin, begin + _CHUNK_PAIRS)
        left, right = pixels[rows[chunk, 0]], pixels[rows[chunk, 1]]
        first, second = (
            side.astype(np.float32) - side.mean(1, dtype=np.float32, keepdims=True) for side in (left, right)
        )
        norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        correlations[chunk] = np.einsum("pd,pd->p", first, second) / np.maximum(norms, _MIN_NORM)
    return correlations


@dataclass(frozen=True)
class NameGroups:
    """Groups of images that the names of their files suggest."""

    names: list[str]  # (N,) name of each image's group
    count: int  # number of groups
    largest: int  # number of images in the largest group
    examples: tuple[str, str]  # two file names in the largest group
    pattern: str  # regular expression for `--group-by`
    # Regular expression that joins the groups with the same name in different folders; "" if there are no such groups.
    across_pattern: str = ""
    shared_name: str = ""  # example of a group name that occurs in several folders


def group_name(key: str, pattern: str = GROUP_PATTERN) -> str | None:
    """Return the text in a key that a pattern, or its first capturing group if any, matches; None if there is no match.

    Example:
        >>> group_name("cat/patient12_slice003.png"), group_name("cat/0001.jpg")
        ('patient12', None)
    """
    match = re.search(pattern, key)
    return match and (match[1] if match.re.groups else match[0])


def suggest_groups(images: ImageSet) -> NameGroups | None:
    """Return the groups that the file names of a set suggest; None if the names suggest no groups.

    A name suggests a group if it ends in a number (of a frame, for instance) and contains another number before that
    (of a video or a patient). The text before the last number is the name of the group. At least half of the names must
    have this form, with at least two images per group on average and at least two groups in every class. So names that
    only number the images of a class (`cat_0001.jpg`, `img_2024_0001.jpg`) suggest no groups.

    A group name that occurs in several folders may mean one group (a patient) or several groups (videos numbered per
    class). Then each folder has its own groups, and `across_pattern` joins groups of the same name.
    """
    pattern, across = _group_patterns(images)
    names = [group_name(key, pattern) for key in images.keys]
    across_names = [group_name(key, across) for key in images.keys]
    folder_names = {
        name: across_name for name, across_name in zip(names, across_names, strict=True) if name and across_name
    }
    shared_names = [name for name, count in Counter(folder_names.values()).items() if count > 1]
    if not shared_names:
        pattern, names = across, across_names
    group_names = [name for name in names if name is not None]
    if len(group_names) < max(2, MIN_MATCHED_FRACTION * len(names)):
        return None
    counts = Counter(group_names)
    n_grouped = sum(count for count in counts.values() if count > 1)
    if n_grouped < MIN_MATCHED_FRACTION * len(names) or len(counts) < 2:
        return None
    if len(group_names) < MIN_GROUP_MEAN * len(counts):
        return None
    if not all(_has_several_groups_per_class(candidate_names, images) for candidate_names in (names, across_names)):
        return None
    largest, size = counts.most_common(1)[0]
    examples = [key.rsplit("/", 1)[-1] for key, name in zip(images.keys, names, strict=True) if name == largest]
    groups = [key if name is None else name for key, name in zip(images.keys, names, strict=True)]
    across_pattern_and_name = (across, shared_names[0]) if shared_names else ("", "")
    return NameGroups(groups, len(counts), size, (examples[0], examples[1]), pattern, *across_pattern_and_name)


def _group_patterns(images: ImageSet) -> tuple[str, str]:
    """Return the patterns of group names within folders and across folders; names leave out splits and shards."""
    begin, ending, keys = "^", _ENDING_PATTERN, list(images.keys)
    if all(".tar/" in key for key in keys):
        begin, keys = r"\.tar/", [key.partition(".tar/")[2] for key in keys]
        numbers = [match[1] for key in images.keys if (match := _SHARD_NUMBER.search(key))]
        if len(set(numbers)) == len(keys):  # each image has its own number
            ending = rf"-\d{{8}}{_ENDING_PATTERN}"
    if all(key.partition("/")[0].lower() in PART_BY_WORD and "/" in key for key in keys):
        begin += "[^/]+/"
    return f"{begin}((?:.*/)?{_NAME_PATTERN}{ending}", f"({_NAME_PATTERN}{ending}"


def _has_several_groups_per_class(names: Sequence[str | None], images: ImageSet) -> bool:
    groups_by_class: dict[int, set[str]] = {}
    for name, label in zip(names, images.labels.tolist(), strict=True):
        if name is not None:
            groups_by_class.setdefault(label, set()).add(name)
    return all(len(groups) > 1 for groups in groups_by_class.values())
