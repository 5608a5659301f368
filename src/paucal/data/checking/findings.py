"""`Finding`, one result of a check, and findings about labels, splits and names, for which no images are decoded."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paucal.data.checking.related import suggest_groups
from paucal.data.classes import NO_LABEL_NAMES, alike_names, are_measurements
from paucal.data.images import ImageSet
from paucal.types import UserError
from paucal.wording import counted, join_first_few, percent

Level = Literal["misleads", "warning", "note"]
LEVELS: tuple[Level, ...] = ("misleads", "warning", "note")
MIN_CLASS_IMAGES = 10  # number of training images below which the score of a class is unreliable
UNBALANCED_RATIO, VERY_UNBALANCED_RATIO = 3.0, 20.0  # size ratio of the largest to the smallest class
_MAX_ENLARGEMENT = 2.0  # images that are enlarged by a larger factor have too little detail for the network
_PARTS = ("train", "val", "test")  # names of the splits


@dataclass(frozen=True)
class Finding:
    """One problem or one property of a set that a check reports.

    Attributes:
        name: Type of the finding, such as "near-duplicates".
        level: "misleads" if a score would be wrong or a run could not start, "warning" if accuracy suffers, "note" for
            anything else.
        text: Description of the problem or the property.
        advice: What to do; "" if there is nothing to do.
        groups: Positions of the images concerned, in groups. Copies of one image form a group, for instance.
    """

    name: str
    level: Level
    text: str
    advice: str = ""
    groups: tuple[tuple[int, ...], ...] = ()

    def to_dict(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the finding as JSON values, with the keys of the images instead of their positions."""
        groups = [[keys[position] for position in group] for group in self.groups]
        return {"name": self.name, "level": self.level, "text": self.text, "advice": self.advice, "groups": groups}


@dataclass(frozen=True)
class CheckedSet:
    """N images, and the (N,) split of each: "train", "val", "test" or "unused"."""

    images: ImageSet
    parts: NDArray[np.str_]
    has_declared_splits: bool
    origin: str = "as paucal train would divide them"  # how the splits are chosen if the data declares none

    def is_divided(self, group: Sequence[int]) -> bool:
        """Return whether the images of a group (positions) are in more than one of train, val and test."""
        return len({self.parts[position] for position in group} - {"unused"}) > 1


def as_groups(positions: Iterable[int] | NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    """Return positions as `Finding.groups` of one image each."""
    return tuple((int(position),) for position in positions)


def refusal_finding(name: str, problem: UserError, prefix: str = "") -> Finding:
    """Return a `Finding` which says that a run on this set fails with this error; `prefix` precedes the message."""
    return Finding(name, "misleads", f"{prefix}{str(problem).rstrip('.')}")


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings sorted by level, the most serious first."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def has_misleading(findings: Sequence[Finding]) -> bool:
    """Return whether any finding makes scores misleading or a run impossible."""
    return any(finding.level == "misleads" for finding in findings)


def label_findings(checked: CheckedSet) -> list[Finding]:
    """Return findings about labels, splits and file names, for which no images are decoded."""
    images = checked.images
    findings = [Finding("source", "note", note.rstrip(".;")) for note in images.notes]
    if images.classes:
        findings += [*_class_name_findings(images), *_class_count_findings(checked)]
    # File names in shards do not show which images belong together.
    groups = None if images.stream is not None else suggest_groups(images)
    if groups is None:
        return findings
    splits_by_group: dict[str, set[str]] = {}
    for name, part in zip(groups.names, checked.parts.tolist(), strict=True):
        splits_by_group.setdefault(name, set()).add(part)
    n_divided = sum(len(splits - {"unused"}) > 1 for splits in splits_by_group.values())
    divided_text = f"; {counted(n_divided, 'group is', 'groups are')} in several splits" if n_divided else ""
    advice = "if that is so, split the images again so that no group is in two splits"
    if not checked.has_declared_splits:
        advice = f"if that is so, keep groups together: --group-by '{groups.pattern}'"
        if groups.across_pattern:
            advice += (
                f"; if '{groups.shared_name}' is the same group in every folder: --group-by '{groups.across_pattern}'"
            )
    text = (
        f"the names of the files suggest {groups.count} groups of up to {groups.largest} images that belong "
        f"together, such as frames of one video ({groups.examples[0]} and {groups.examples[1]}, for example)"
        f"{divided_text}"
    )
    level = "note" if not n_divided else "misleads" if checked.has_declared_splits else "warning"
    return [*findings, Finding("name-groups", level, text, advice)]


def split_failure_finding(problem: UserError) -> Finding:
    """Return a `Finding` which says that a set cannot be divided into train, val and test, because of `problem`."""
    return refusal_finding("split", problem, "the images cannot be split: ")


def small_image_findings(sizes: np.ndarray, img_size: int, positions: np.ndarray) -> list[Finding]:
    """Return a list with a `Finding` if images must be enlarged by a factor above 2 to be `img_size` pixels large.

    `sizes` are the (N, 2) heights and widths of the images at the (N,) `positions`.
    """
    if not len(sizes):
        return []
    shorter_sides = sizes.min(axis=1)
    small_images = np.flatnonzero(shorter_sides * _MAX_ENLARGEMENT < img_size)
    if not len(small_images):
        return []
    total = len(sizes)
    text = (
        f"{counted(len(small_images), f'image of {total} is', f'images of {total} are')} less than half as large as "
        f"--img-size {img_size}, which paucal train would choose (the smallest is {int(shorter_sides.min())} "
        "pixels): they are enlarged, and have less detail than the network could use"
    )
    level = "warning" if len(small_images) < 0.5 * total else "note"
    advice = "use larger copies if there are any"
    return [Finding("small-images", level, text, advice, as_groups(positions[small_images]))]


def _class_name_findings(images: ImageSet) -> Iterator[Finding]:
    """Yield findings on class names that look the same, stand for a missing label, or are measurements."""
    if alike := [" and ".join(map(repr, group)) for group in alike_names(images.classes)]:
        groups = counted(len(alike), "group of classes has", "groups of classes have")
        text = f"{groups} names that look the same ({join_first_few(alike)})"
        yield Finding("alike-classes", "warning", text, "give the classes of a group one name if they are one class")
    if missing := [repr(name) for name in images.classes if name in NO_LABEL_NAMES]:
        verb = "is" if len(missing) == 1 else "are"
        text = f"{join_first_few(missing)} {verb} learnt as a class, but may stand for a missing label"
        yield Finding("missing-labels", "warning", text, "leave the label of such images empty")
    if are_measurements(images.classes, 0.0):
        text = f"the classes look like measurements ({join_first_few(images.classes)}), but are used as classes"
        yield Finding("measurements", "warning", text, "replace the numbers by ranges, such as 'low' and 'high'")


def _class_count_findings(checked: CheckedSet) -> Iterator[Finding]:
    """Yield findings on classes that are missing in a split, and on rare and unbalanced classes in the training set."""
    images = checked.images
    counts = {part: images.class_counts(np.flatnonzero(checked.parts == part)) for part in _PARTS}
    parts = [part for part in _PARTS if (checked.parts == part).any()]
    train_counts = counts["train"]
    unseen = [images.classes[label] for label in np.flatnonzero(train_counts == 0)]
    if unseen and "train" in parts:
        text = (
            f"{counted(len(unseen), 'class is', 'classes are')} in other splits and not in train "
            f"({join_first_few(unseen)}): no model can learn {'it' if len(unseen) == 1 else 'them'}"
        )
        advice = "check the spelling of the class folders, or move images of these classes to train"
        yield Finding("untrained-classes", "misleads", text, advice)
    for part in parts[1:]:
        if missing := [images.classes[label] for label in np.flatnonzero((train_counts > 0) & (counts[part] == 0))]:
            text = (
                f"{counted(len(missing), 'class has', 'classes have')} no images in {part} "
                f"({join_first_few(missing)}), so scores on {part} leave {'it' if len(missing) == 1 else 'them'} out"
            )
            advice = f"add images of these classes to {part}, or let paucal divide the images (one folder per class)"
            yield Finding("unjudged-classes", "warning", text, advice)
    counts_by_class = dict(zip(images.classes, train_counts.tolist(), strict=True))
    if rare := [f"{name}: {count}" for name, count in counts_by_class.items() if 0 < count < MIN_CLASS_IMAGES]:
        text = (
            f"{counted(len(rare), 'class has', 'classes have')} fewer than {MIN_CLASS_IMAGES} images to train on "
            f"({join_first_few(rare)}): {'its score is' if len(rare) == 1 else 'their scores are'} unreliable"
        )
        advice = "add images, merge classes, or look at the confidence intervals before you rely on a score"
        yield Finding("rare-classes", "warning", text, advice)
    if train_counts.min() > 0 and train_counts.max() >= UNBALANCED_RATIO * train_counts.min():
        yield _imbalance_finding(images, train_counts)


def _imbalance_finding(images: ImageSet, counts: NDArray[np.int64]) -> Finding:
    """Return a `Finding` about unbalanced classes; `counts` are the (K,) numbers of training images per class."""
    largest, smallest, ratio = int(counts.argmax()), int(counts.argmin()), counts.max() / counts.min()
    text = (
        f"the classes are unbalanced: '{images.classes[largest]}' has {ratio:.0f} times the training images of "
        f"'{images.classes[smallest]}' ({counts[largest]} and {counts[smallest]})"
    )
    advice = "look at the average precision of each class, and try --class-weights auto"
    if images.multi_hot is None:
        fraction = percent(counts[largest] / counts.sum())
        text += f"; always predicting '{images.classes[largest]}' would be right for {fraction}"
        advice = "look at the balanced accuracy, and try --class-weights auto or --sampling balanced"
    return Finding("imbalance", "warning" if ratio >= VERY_UNBALANCED_RATIO else "note", text, advice)


def class_counts_by_split(images: ImageSet, parts: np.ndarray) -> dict[str, dict[str, int]]:
    """Return the number of images per class for each split (train, val or test) that has images."""
    return {
        part: dict(zip(images.classes, images.class_counts(np.flatnonzero(parts == part)).tolist(), strict=True))
        for part in _PARTS
        if (parts == part).any()
    }
