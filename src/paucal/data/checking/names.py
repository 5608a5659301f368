"""Names of files that suggest that images belong together: frames of a video, slices of a patient, views of a thing."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paucal.data.images import ImageSet

LEAST_MEAN = 2.0  # images in a group on average, from which on it is one
LEAST_SHARE = 0.5  # of the images whose names have the form


@dataclass(frozen=True)
class NameGroups:
    """Groups that the names of files suggest.

    Attributes:
        names: the group of each image, N of them.
        count: how many groups hold images.
        largest: images in the largest one.
        examples: two names of one group.
        pattern: regular expression whose first group is the name of the group, as `--group-by` takes it.
    """

    names: list[str]
    count: int
    largest: int
    examples: tuple[str, str]
    pattern: str


# What stands before the last number of a name, where that holds a number of its own: patient12_slice003, v3-0001.
PATTERN = r"([^/]*\d[^/]*?)[-_ .]+[A-Za-z]*[-_ .]?\(?\d+\)?\.[^./]+$"


def group_name(key: str, pattern: str = PATTERN) -> str | None:
    """Return what a pattern finds in a key: its first group, or all that it matches; None where it matches nothing.

    Example:
        >>> group_name("cat/patient12_slice003.png"), group_name("cat/0001.jpg")
        ('patient12', None)
    """
    found = re.search(pattern, key)
    if found is None:
        return None
    return found[1] if found.re.groups else found[0]


def suggested_groups(images: ImageSet) -> NameGroups | None:
    """Return the groups that the names of a set suggest; None where they suggest none.

    A name suggests a group where it ends in a number, as frames do, and has another number before that one: a video's,
    a patient's. What stands before the last number is the group. It must be so for half of the names, with two images
    or more in a group on average and two groups or more in every class, so that names which do no more than count the
    images of a class (`cat_0001.jpg`, `img_2024_0001.jpg`) suggest nothing.
    """
    names = [group_name(key) for key in images.keys]
    told = [name for name in names if name is not None]
    if len(told) < max(2, LEAST_SHARE * len(names)):
        return None
    counts = Counter(told)
    repeated = sum(count for count in counts.values() if count > 1)
    if len(told) / len(counts) < LEAST_MEAN or repeated < LEAST_SHARE * len(names) or len(counts) < 2:
        return None
    if not _several_in_each_class(names, images):
        return None
    largest, size = counts.most_common(1)[0]
    examples = [key.rsplit("/", 1)[-1] for key, name in zip(images.keys, names, strict=True) if name == largest]
    groups = [key if name is None else name for key, name in zip(images.keys, names, strict=True)]
    return NameGroups(groups, len(counts), size, (examples[0], examples[1]), PATTERN)


def _several_in_each_class(names: Sequence[str | None], images: ImageSet) -> bool:
    of_class: dict[int, set[str]] = {}
    for name, label in zip(names, images.labels.tolist(), strict=True):
        if name is not None:
            of_class.setdefault(label, set()).add(name)
    return all(len(found) > 1 for found in of_class.values())
