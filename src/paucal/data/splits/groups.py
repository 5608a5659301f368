"""Splits that keep each group (frames of a video, slices of a patient) together, and iterative stratification."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from paucal.data.checking.related import CANDIDATE_SIDE, find_similar_pairs, group_by_digest, group_name, merge_groups
from paucal.data.checking.survey import survey_images
from paucal.data.images import UNKNOWN, ImageSet, Targets, reduce_images
from paucal.data.randomness import derive_seed
from paucal.data.sources.joining import join_sets
from paucal.data.sources.labels import is_missing
from paucal.data.string_arrays import argsort_strings
from paucal.types import UserError
from paucal.wording import counted

DUPLICATES = "duplicates"
_MIN_MATCHED_FRACTION = 0.5  # smallest fraction of the image names that a pattern must match
_MAX_PATTERN_LENGTH = 300  # maximum length of a pattern in characters


def group_numbers(images: ImageSet, group_by: str) -> NDArray[np.int64]:
    """Return the (N,) group number of each image.

    `group_by` is a column of the table that the set was read from; "duplicates" to group images that are equal or look
    alike; or a regular expression for the keys of the images, whose first capturing group (or full match, if there is
    no capturing group) is the name of the image's group. An image whose key does not match is a group by itself.
    """
    if group_by in images.columns:
        if n_missing := sum(is_missing(cell.strip()) for cell in images.column_values(group_by)):
            raise UserError(
                f"--group-by: {n_missing} of {counted(len(images), 'image')} have no value in the column {group_by!r}, "
                "so their groups are unknown: fill in the column, or remove these images."
            )
        return np.unique(np.asarray(images.columns[group_by], dtype=object).astype(str), return_inverse=True)[1]
    if group_by == DUPLICATES:
        if images.stream is not None:
            raise UserError(
                "--group-by duplicates compares all images before the run, but images in shards are read during the "
                "run: remove the copies that 'paucal check' finds, or group by a pattern in the names."
            )
        survey, store = survey_images(images), reduce_images(images, CANDIDATE_SIDE).store
        pairs = [[pair.first, pair.second] for pair in find_similar_pairs(survey, store)]
        numbers = np.arange(len(images))
        for group in merge_groups([*group_by_digest(survey.digests), *pairs]):
            numbers[group] = group[0]
        return np.unique(numbers, return_inverse=True)[1]
    if len(group_by) > _MAX_PATTERN_LENGTH:
        raise UserError(f"--group-by has {len(group_by)} characters; give a shorter pattern, or the name of a column.")
    columns = f"; the columns are {', '.join(images.columns)}" if images.columns else ""
    try:
        names = [group_name(key, group_by) for key in images.keys]
    except re.error as problem:
        text = f"--group-by: {group_by!r} is neither a column nor a regular expression ({problem}){columns}"
        raise UserError(text) from None
    matches = sum(name is not None for name in names)
    if matches < _MIN_MATCHED_FRACTION * len(names):
        raise UserError(
            f"--group-by: {group_by!r} is not a column, and as a pattern matches only {matches} of {len(names)} names "
            f"(such as {images.keys[0]!r}){columns}; give a pattern that most names match, such as 'patient[0-9]+'."
        )
    group_names = [
        f"image {key}" if name is None else f"group {name}" for name, key in zip(names, images.keys, strict=True)
    ]
    return np.unique(np.asarray(group_names, dtype=object).astype(str), return_inverse=True)[1]


def find_copies(
    images: ImageSet, reference_images: ImageSet | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two (N,) masks: whether each image looks like a reference image, or like an earlier image of `images`."""
    sets = [
        replace(image_set, classes=(), labels=np.full(len(image_set), -1), multi_hot=None, columns={})
        for image_set in (reference_images, images)
        if image_set is not None
    ]
    numbers = group_numbers(join_sets(sets, images.location) if len(sets) > 1 else sets[0], DUPLICATES)
    other_numbers, image_numbers = np.split(numbers, [len(numbers) - len(images)])
    is_first = np.zeros(len(image_numbers), dtype=bool)
    is_first[np.unique(image_numbers, return_index=True)[1]] = True
    return np.isin(image_numbers, other_numbers), ~is_first


def move_groups(
    images: ImageSet, parts: NDArray[np.str_], fractions: Mapping[str, float], seed: int, groups: NDArray[np.int64]
) -> NDArray[np.str_]:
    """Move whole groups of training images to other splits; each split gets about its fraction of every class.

    Groups are visited from the largest to the smallest, and groups of equal size in a random order. A group moves to a
    split if this brings the number of images per class in the split closer to the intended fraction.
    """
    parts, n_classes = parts.copy(), max(1, len(images.classes))
    pool = np.flatnonzero(parts == "train")
    refuse_divided_groups(parts, groups)
    members = {group: pool[groups[pool] == group] for group in np.unique(groups[pool]).tolist()}
    fractions = {part: fraction for part, fraction in fractions.items() if fraction > 0}
    if len(members) <= len(fractions):
        raise UserError(
            f"--group-by gives {counted(len(members), 'group')}, too few for {len(fractions) + 1} splits: "
            "give a pattern or column with more groups."
        )
    order = np.random.default_rng(derive_seed(seed, len(members))).permutation(list(members))
    order = sorted(order.tolist(), key=lambda group: -len(members[group]))
    counts = {group: _class_counts(images, positions, n_classes) for group, positions in members.items()}
    total = _class_counts(images, pool, n_classes)
    remaining_counts = total.copy()
    for n_later, (part, fraction) in zip(reversed(range(len(fractions))), fractions.items(), strict=True):
        candidates = [group for group in order if group in counts]
        moved_groups = _choose_groups(total * fraction, remaining_counts, counts, candidates)
        while len(moved_groups) > 1:
            after_move = remaining_counts - sum(counts[group] for group in moved_groups)
            n_movable = sum(_keeps_classes(after_move, counts[group]) for group in counts.keys() - moved_groups)
            if n_movable >= n_later:  # each later split can still get a group
                break
            moved_groups.pop()
        for group in moved_groups:
            parts[members[group]] = part
            remaining_counts = remaining_counts - counts.pop(group)
        if not moved_groups:
            raise UserError(
                f"--group-by: no group can move to the {part} split, since each group has all remaining training "
                f"images of a class ({counted(len(members), 'group')}): give a pattern or column with more groups."
            )
    return parts


def _class_counts(images: ImageSet, positions: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    """Return the number of images per class, as an array; unlabelled images count as one class."""
    if images.multi_hot is None:
        return np.bincount(np.maximum(images.labels[positions], 0), minlength=n_classes)
    n_unlabelled = (images.multi_hot[positions] != 1).all(1).sum()  # counts as an additional class
    return np.append(images.class_counts(positions), n_unlabelled)


def _choose_groups(
    target_counts: NDArray[np.floating],
    remaining_counts: NDArray[np.int64],
    counts: Mapping[int, NDArray[np.int64]],
    order: list[int],
) -> list[int]:
    """Choose groups, in the given order, whose (K,) images per class add up to about `target_counts`.

    Every class keeps a training image. If no group brings the sum closer to the target, return the smallest group that
    can move.
    """
    moved_groups, reached_counts = [], np.zeros(len(target_counts))
    for group in order:
        if not _keeps_classes(remaining_counts, counts[group]):
            continue
        if np.abs(target_counts - reached_counts - counts[group]).sum() < np.abs(target_counts - reached_counts).sum():
            moved_groups.append(group)
            reached_counts, remaining_counts = reached_counts + counts[group], remaining_counts - counts[group]
    return moved_groups or [group for group in reversed(order) if _keeps_classes(remaining_counts, counts[group])][:1]


def _keeps_classes(remaining_counts: NDArray[np.int64], moved_counts: NDArray[np.int64]) -> bool:
    """Return whether every class keeps a training image if `moved_counts` images per class move."""
    return bool(((remaining_counts - moved_counts) > 0)[remaining_counts > 0].all())


def refuse_divided_groups(parts: NDArray[np.str_], groups: NDArray[np.int64]) -> None:
    """Raise a UserError if a group has images in several splits that the data declares."""
    declared_parts = sorted(set(parts.tolist()) - {"unused"})
    groups_by_part = [set(groups[parts == part].tolist()) for part in declared_parts]
    if divided := set().union(*(first & second for first, second in combinations(groups_by_part, 2))):
        raise UserError(
            f"--group-by: the data's own splits ({', '.join(declared_parts)}) divide {counted(len(divided), 'group')}, "
            "and --group-by does not change these splits: move each group into one split, or give images without "
            "splits."
        )


def splits_of_fold(
    images: ImageSet, fold: int, folds: int, seed: int, groups: NDArray[np.int64] | None
) -> NDArray[np.str_]:
    """Return the (N,) splits of a cross-validation run: "test" for the images of a fold, "train" for all other images.

    Every image is in exactly one fold, from 1 to `folds`. Folds have about the same fraction of every class (unlabelled
    images are one class), and do not divide the (N,) `groups`, if any. Splits that the data declares are ignored.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold  # slow to import, and rarely needed

    if not 1 <= fold <= folds or folds < 2:
        raise UserError(f"--fold is {fold}/{folds}; expected one of two or more folds, such as 2/5.")
    if images.multi_hot is not None and groups is not None:
        raise UserError("--group-by with folds needs one label for each image: give --folds or --group-by, not both.")
    counts = images.class_counts()
    if len(images) < folds:
        raise UserError(f"{images.location} has {counted(len(images), 'image')}, too few for {folds} folds.")
    if images.classes and counts.min() < folds:
        name = images.classes[int(counts.argmin())]
        raise UserError(f"class {name!r} has {counted(int(counts.min()), 'image')}, too few for {folds} folds.")
    if groups is not None and len(np.unique(groups)) < folds:
        raise UserError(f"--group-by gives {counted(len(np.unique(groups)), 'group')}, too few for {folds} folds.")
    # As in all splits, folds depend on the sorted keys, not on the order of the files.
    order, parts = argsort_strings(images.keys), np.full(len(images), "train", dtype="<U6")
    if images.multi_hot is not None:
        fold_numbers = stratify_iteratively(images.multi_hot[order], [1 / folds] * folds, derive_seed(seed, folds))
        parts[order[fold_numbers == fold - 1]] = "test"
        return parts
    splitter_class = StratifiedKFold if groups is None else StratifiedGroupKFold
    splitter = splitter_class(folds, shuffle=True, random_state=derive_seed(seed, folds) % 2**32)
    pairs = list(splitter.split(order, images.labels[order], None if groups is None else groups[order]))
    for rows, _ in pairs:
        if missing := np.setdiff1d(images.labels, images.labels[order[rows]]).tolist():
            raise UserError(
                f"--group-by: all images of class {images.classes[missing[0]]!r} are in the same fold of {folds}, so "
                "no image of this class remains to train on: give a pattern or column with more groups."
            )
    parts[order[pairs[fold - 1][1]]] = "test"
    return parts


def parse_fold(text: str) -> tuple[int, int]:
    """Return the number of the fold (from 1) and the number of folds in a text such as "2/5"."""
    match = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", text)
    if match is None:
        raise UserError(f"--fold is {text!r}; expected the fold and the number of folds, such as 2/5.")
    return int(match[1]), int(match[2])


def stratify_iteratively(multi_hot: Targets, fractions: Sequence[float], seed: int) -> NDArray[np.int64]:
    """Return the (N,) number of each image's subset, with about the same fraction of every class in the P subsets.

    Iterative stratification (Sechidis, Tsoumakas and Vlahavas, "On the stratification of multi-label data", ECML PKDD
    2011, figure 2): the class with the fewest remaining images is divided first. Each image of the class goes to the
    subset that still lacks the most images of the class. Then each unlabelled image goes to the subset that lacks the
    most images. Unlike in the paper, ties go to the first subset instead of a random subset; the order of the images is
    random. The fractions are most exact for the rarest classes. Every subset with a fraction above 0 gets an image if
    there are enough images.

    `multi_hot` are (N, K) labels, in which -1 (unknown) counts as 0. The (P,) fractions sum to 1.
    """
    if abs(sum(fractions) - 1) > 1e-6 or min(fractions) < 0:
        raise ValueError(f"expected fractions of at least 0 whose sum is 1, got {list(fractions)}")
    rows = np.where(multi_hot == UNKNOWN, 0, multi_hot).astype(bool)
    order = np.random.default_rng(seed).permutation(len(rows))
    parts = np.full(len(rows), -1, dtype=np.int64)
    wanted_images = np.asarray(fractions, dtype=np.float64) * len(rows)
    wanted_counts = np.outer(fractions, rows.sum(0))  # (P, K)
    remaining_counts = rows.sum(0)
    while remaining_counts.any():
        label = int(np.where(remaining_counts > 0, remaining_counts, len(rows) + 1).argmin())
        for index in order[(parts[order] < 0) & rows[order, label]]:
            part = max(range(len(fractions)), key=lambda part: (wanted_counts[part, label], wanted_images[part]))
            parts[index] = part
            wanted_counts[part] -= rows[index]
            wanted_images[part] -= 1
            remaining_counts = remaining_counts - rows[index]
    for index in order[parts[order] < 0]:
        part = int(wanted_images.argmax())
        parts[index], wanted_images[part] = part, wanted_images[part] - 1
    return parts
