"""Images that belong together, and splits that keep them on one side: frames of a video, slices of a patient."""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from paucal.data.checking.duplicates import CANDIDATE_SIDE, alike_pairs, exact_groups, joined
from paucal.data.checking.names import group_name
from paucal.data.checking.survey import survey_images
from paucal.data.decoded.read_as import smaller
from paucal.data.images import ImageSet
from paucal.data.randomness import derive_seed
from paucal.data.shards.texts import sorted_positions
from paucal.data.splits.iterative import iterative_parts
from paucal.types import UserError
from paucal.wording import counted

DUPLICATES = "duplicates"
_LEAST_SHARE = 0.5  # of the images that a pattern must say something about
_MOST_PATTERN = 300  # characters; a longer one is no pattern of names


def group_numbers(images: ImageSet, by: str) -> NDArray[np.int64]:
    """Return the (N,) number of the group of each image.

    Args:
        images: the set.
        by: a column of the table that the set was read from; "duplicates" for images that are equal or look alike; or a
            regular expression, of which the first group (all of it without one) names the group. Images in whose keys
            it is not found stand alone.

    Raises:
        UserError: there is no such column and it is no regular expression, most names do not have the form, or copies
            are asked for among images that are read as they come.
    """
    if by in images.columns:
        return np.unique(np.asarray(images.columns[by], dtype=object).astype(str), return_inverse=True)[1]
    if by == DUPLICATES:
        if images.stream is not None:
            raise UserError(
                "--group-by duplicates looks at every image, and those in shards are read as they come: remove the "
                "copies that 'paucal check' finds, or group by a pattern of their names"
            )
        return _copies(images)
    if len(by) > _MOST_PATTERN:
        raise UserError(f"--group-by has {len(by)} characters; give a shorter pattern, or the name of a column")
    known = f"; the columns are {', '.join(images.columns)}" if images.columns else ""
    try:
        names = [group_name(key, by) for key in images.keys]
    except re.error as problem:
        raise UserError(f"--group-by: {by!r} is no column and no regular expression ({problem}){known}") from None
    told = sum(name is not None for name in names)
    if told < _LEAST_SHARE * len(names):
        raise UserError(
            f"--group-by: {by!r} is no column and is found in {told} of {len(names)} names (such as "
            f"{images.keys[0]!r}){known}; give a pattern that most names have, as 'patient[0-9]+'"
        )
    alone = [
        f"group {name}" if name is not None else f"image {key}" for name, key in zip(names, images.keys, strict=True)
    ]
    return np.unique(np.asarray(alone, dtype=object).astype(str), return_inverse=True)[1]


def _copies(images: ImageSet) -> NDArray[np.int64]:
    survey = survey_images(images)
    pairs = ([pair.first, pair.second] for pair in alike_pairs(survey, smaller(images, CANDIDATE_SIDE).store))
    numbers = np.arange(len(images))
    for group in joined([*exact_groups(survey.digests), *pairs]):
        numbers[group] = group[0]
    return np.unique(numbers, return_inverse=True)[1]


def cut_groups(
    images: ImageSet, parts: NDArray[np.str_], cut: Mapping[str, float], seed: int, groups: NDArray[np.int64]
) -> NDArray[np.str_]:
    """Move whole groups of the train part to the parts named in `cut`, so that every class has about its share.

    Groups are looked at in an order that depends on the seed, large ones first; one moves where that brings the counts
    of its part, class by class, nearer to the shares that are wanted.

    Args:
        images: the set.
        parts: (N,) as declared.
        cut: share of each part.
        seed: of the order.
        groups: (N,) numbers.

    Raises:
        UserError: there are fewer groups than parts, or a class would have no training image left.
    """
    parts, n_classes = parts.copy(), max(1, len(images.classes))
    pool = np.flatnonzero(parts == "train")
    refuse_torn(parts, groups)
    members = {group: pool[groups[pool] == group] for group in np.unique(groups[pool]).tolist()}
    wanted_parts = {part: share for part, share in cut.items() if share > 0}
    if len(members) <= len(wanted_parts):
        raise UserError(
            f"--group-by makes {counted(len(members), 'group')} of the images to divide, and {len(wanted_parts) + 1} "
            "parts are wanted: give a finer pattern or column"
        )
    order = np.random.default_rng(derive_seed(seed, len(members))).permutation(list(members))
    order = sorted(order.tolist(), key=lambda group: -len(members[group]))
    counts = {group: _class_counts(images, found, n_classes) for group, found in members.items()}
    total = _class_counts(images, pool, n_classes)
    left = total.copy()
    for part, share in wanted_parts.items():
        moved = _nearest(total.astype(np.float64) * share, left, counts, [group for group in order if group in counts])
        for group in moved:
            parts[members[group]] = part
            left = left - counts.pop(group)
        if not moved:
            raise UserError(
                f"--group-by: no group can be the {part} part, since each has all images of a class that are left "
                f"({counted(len(members), 'group')}): give a finer pattern, or more groups"
            )
    return parts


def _class_counts(images: ImageSet, found: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    """Return the images of each class; those of an unlabelled set are of one, and of several labels one is "none"."""
    if images.multi_hot is None:
        return np.bincount(np.maximum(images.labels[found], 0), minlength=n_classes)
    bare = (images.multi_hot[found] != 1).all(1).sum()
    return np.append(images.class_counts(found), bare)


def _nearest(
    wanted: NDArray[np.float64], left: NDArray[np.int64], counts: Mapping[int, NDArray[np.int64]], order: list[int]
) -> list[int]:
    """Return the groups that bring a part's (K,) counts nearest to what is wanted; the smallest one where none does.

    Every class that has images left to train on keeps some.
    """
    moved, have = [], np.zeros(len(wanted))
    for group in order:
        if not ((left - counts[group]) > 0)[left > 0].all():
            continue
        if np.abs(wanted - have - counts[group]).sum() < np.abs(wanted - have).sum():
            moved.append(group)
            have, left = have + counts[group], left - counts[group]
    if not moved:
        moved = [group for group in reversed(order) if ((left - counts[group]) > 0)[left > 0].all()][:1]
    return moved


def refuse_torn(parts: NDArray[np.str_], groups: NDArray[np.int64]) -> None:
    """Refuse groups that the data's own parts tear apart."""
    given = sorted(set(parts.tolist()) - {"unused"})
    of_part = [set(groups[parts == part].tolist()) for part in given]
    torn = set().union(*(one & other for place, one in enumerate(of_part) for other in of_part[:place]))
    if torn:
        raise UserError(
            f"--group-by: {counted(len(torn), 'group')} lie in several of the data's own parts ({', '.join(given)}), "
            "which would stay so: divide the images anew, or give them without parts"
        )


def fold_parts(
    images: ImageSet, fold: int, folds: int, seed: int, groups: NDArray[np.int64] | None
) -> NDArray[np.str_]:
    """Return (N,) parts where one of several folds is "test" and all others are "train".

    Every image is tested in exactly one fold. Folds have about the same share of every class, and keep groups whole.

    Args:
        images: the set; its own parts are not looked at.
        fold: which one, from 1 to `folds`.
        folds: how many.
        seed: of the draw.
        groups: (N,) numbers; None for images that stand alone.

    Raises:
        UserError: a class has fewer images, or the set fewer groups, than there are folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold  # takes a second; most runs need it not

    if not 1 <= fold <= folds or folds < 2:
        raise UserError(f"--fold is {fold}/{folds}; expected one of two folds or more, such as 2/5")
    if images.multi_hot is not None and groups is not None:
        raise UserError("--group-by with folds needs one label for each image: give --folds or --group-by, not both")
    counts = images.class_counts()
    if counts.min() < folds:
        name = images.classes[int(counts.argmin())]
        raise UserError(f"class {name!r} has {counted(int(counts.min()), 'image')}, too few for {folds} folds")
    if groups is not None and len(np.unique(groups)) < folds:
        raise UserError(f"--group-by makes {counted(len(np.unique(groups)), 'group')}, too few for {folds} folds")
    # The order of the keys, not that of the files, decides, as in all splits.
    order = sorted_positions(images.keys)
    if images.multi_hot is not None:
        drawn = iterative_parts(images.multi_hot[order], [1 / folds] * folds, derive_seed(seed, folds))
        parts = np.full(len(images), "train", dtype="<U6")
        parts[order[drawn == fold - 1]] = "test"
        return parts
    state = derive_seed(seed, folds) % 2**32
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    drawn = kind(folds, shuffle=True, random_state=state)
    pairs = list(drawn.split(order, images.labels[order], None if groups is None else groups[order]))
    parts = np.full(len(images), "train", dtype="<U6")
    parts[order[pairs[fold - 1][1]]] = "test"
    return parts


def parse_fold(text: str) -> tuple[int, int]:
    """Return which fold of how many.

    Raises:
        UserError: it is something else than two numbers with a slash.

    Example:
        >>> parse_fold("2/5")
        (2, 5)
    """
    found = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", text)
    if found is None:
        raise UserError(f"--fold is {text!r}; expected which of how many, such as 2/5")
    return int(found[1]), int(found[2])


def described(by: str, groups: NDArray[np.int64]) -> str:
    """Return a sentence's end about groups that were kept together."""
    return f"whole groups by {by!r} ({len(np.unique(groups))} of them)"
