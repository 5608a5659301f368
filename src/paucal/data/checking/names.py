"""Groups that file names suggest: frames of a video, slices of a patient, views of an object."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paucal.data.images import ImageSet
from paucal.data.part_names import PARTS

LEAST_MEAN = 2.0  # least mean number of images in a group
LEAST_SHARE = 0.5  # least share of the images whose names have the form


@dataclass(frozen=True)
class NameGroups:
    """Groups that the names of files suggest.

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


# What stands before the last number of a name, where that holds a number of its own: patient12_slice003, v3-0001.
_NAME = r"[^/]*\d[^/]*?)[-_.\s]+[A-Za-z]*[-_.\s]?\(?\d+\)?"
_ENDING = r"\.[^./#]+$"  # a row of a file (train-00001-of-00003.parquet#7) has no name of its own
PATTERN = f"({_NAME}{_ENDING}"
_RUNNING = re.compile(rf"\.tar/.*-(\d{{8}}){_ENDING}")  # the number that `paucal shard` gives each image


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
    """Return the groups that the names of a set suggest; None if they suggest no groups.

    A name suggests a group if it ends in a number, as frames do, and has another number before that one: a video's, a
    patient's. The text before the last number is the group. It must be so for half of the names, with two images
    or more in a group on average and two groups or more in every class, so that names which do no more than count the
    images of a class (`cat_0001.jpg`, `img_2024_0001.jpg`) suggest nothing.

    A name that occurs in several folders may be one group (a patient) or several (each class counts its videos): the
    groups are those within folders then, and `across` joins them.
    """
    within, across = _patterns(images)
    names = [group_name(key, within) for key in images.keys]
    joined = [group_name(key, across) for key in images.keys]
    folders = {name: last for name, last in zip(names, joined, strict=True) if name is not None and last is not None}
    shared = [name for name, count in Counter(folders.values()).items() if count > 1]
    if not shared:
        within, names = across, joined
    named = [name for name in names if name is not None]
    if len(named) < max(2, LEAST_SHARE * len(names)):
        return None
    counts = Counter(named)
    repeated = sum(count for count in counts.values() if count > 1)
    if len(named) / len(counts) < LEAST_MEAN or repeated < LEAST_SHARE * len(names) or len(counts) < 2:
        return None
    if not (_several_in_each_class(names, images) and _several_in_each_class(joined, images)):
        return None
    largest, size = counts.most_common(1)[0]
    examples = [key.rsplit("/", 1)[-1] for key, name in zip(images.keys, names, strict=True) if name == largest]
    groups = [key if name is None else name for key, name in zip(images.keys, names, strict=True)]
    more = (across, shared[0]) if shared else ("", "")
    return NameGroups(groups, len(counts), size, (examples[0], examples[1]), within, *more)


def _patterns(images: ImageSet) -> tuple[str, str]:
    """Return the pattern of groups within folders, and that of groups across folders.

    The folder of a part and the shard of an image are not part of a group's name, and the number that `paucal shard`
    gives each image is not the number of a frame.
    """
    begin, ending, keys = "^", _ENDING, list(images.keys)
    if all(".tar/" in key for key in keys):
        begin, keys = r"\.tar/", [key.partition(".tar/")[2] for key in keys]
        numbers = [found[1] for key in images.keys if (found := _RUNNING.search(key))]
        if len(set(numbers)) == len(keys):  # each image has its own number
            ending = rf"-\d{{8}}{_ENDING}"
    if all(key.partition("/")[0].lower() in PARTS and "/" in key for key in keys):
        begin += "[^/]+/"
    return f"{begin}((?:.*/)?{_NAME}{ending}", f"({_NAME}{ending}"


def _several_in_each_class(names: Sequence[str | None], images: ImageSet) -> bool:
    of_class: dict[int, set[str]] = {}
    for name, label in zip(names, images.labels.tolist(), strict=True):
        if name is not None:
            of_class.setdefault(label, set()).add(name)
    return all(len(found) > 1 for found in of_class.values())
