"""Splits of a set into training, validation and test images, which may also use fewer images for training."""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from paucal.data.classes import are_measurements
from paucal.data.images import ImageSet, Targets
from paucal.data.randomness import derive_seed
from paucal.data.splits.groups import (
    group_numbers,
    move_groups,
    parse_fold,
    refuse_divided_groups,
    splits_of_fold,
    stratify_iteratively,
)
from paucal.data.string_arrays import RepeatedStrings, argsort_strings
from paucal.types import UserError
from paucal.wording import counted

PARTS = ("train", "val", "test", "unused")
DEFAULT_VAL_FRACTION = 0.1
NO_VAL_TEXT = "and no images are kept for model selection"


class Split:
    """The assignment of each image to train, val, test or "unused", in one byte of memory per image.

    `parts` are the (N,) strings, and `description` is a sentence on how the set was split. `groups` are the (N,) group
    numbers if groups were kept together, else None. `strings` has the (N,) strings in compact form.
    """

    def __init__(
        self, parts: NDArray[np.str_] | RepeatedStrings, description: str, groups: NDArray[np.int64] | None = None
    ) -> None:
        self.description = description
        self.groups = groups
        self.strings = parts if isinstance(parts, RepeatedStrings) else RepeatedStrings.from_strings(PARTS, parts)

    @property
    def parts(self) -> NDArray[np.str_]:
        """The split of each image, as a new (N,) array of strings."""
        return np.asarray(self.strings, dtype="<U6")

    def indices(self, part: str) -> NDArray[np.int64]:
        """Return the sorted positions of the images of a split, such as "train"."""
        if part not in PARTS:
            raise ValueError(f"expected one of {PARTS}, got {part!r}")
        return np.flatnonzero(self.strings.equals(part))

    def counts(self) -> dict[str, int]:
        """Return the number of images in train, val, test and unused."""
        return {part: int(self.strings.equals(part).sum()) for part in PARTS}

    def exclude(self, is_excluded: NDArray[np.bool_], reason: str) -> "Split":
        """Return the split with the images in the (N,) mask `is_excluded` as "unused", for the given reason."""
        return Split(np.where(is_excluded, "unused", self.parts), f"{self.description}; {reason}", self.groups)


def held_out_part(declared: Collection[str]) -> str:
    """Return the declared split that `make_split` uses for testing; "" if test images are taken from train."""
    parts = set(declared)
    return "test" if "test" in parts else "val" if "val" in parts and len(parts) > 1 else ""


def make_split(
    image_set: ImageSet,
    seed: int = 0,
    val_fraction: float = DEFAULT_VAL_FRACTION,
    test_fraction: float = 0.2,
    group_by: str | None = None,
    fold: str | None = None,
) -> Split:
    """Split a set into train, val and test images; splits that the set declares are kept.

    Missing splits are taken from the training images: a fraction of each class, with at least one image of each class
    in every split. The result depends only on the seed and the keys. If images may have several labels, the set is
    divided by iterative stratification (`stratify_iteratively`), and a rare class may be missing in val or test.

    - If the set declares train, val and test, nothing is changed.
    - If the set declares train and test, val is taken from train.
    - If the set declares train and val, the declared val images become the test images, since published results are on
      these images and model selection must not use the test images; a new val is taken from train.
    - If the set declares only train, or no splits at all, val and test are taken from all images.

    If `val_fraction` is 0, all images except the test images are training images, even those of a val folder. The test
    images are the same as with the default `val_fraction`, so that runs with and without val can be compared.

    `group_by` is the column or pattern of groups that are kept together (see `group_numbers`); a class may then be
    missing in val or test. With a `fold` such as "2/5", the second of five folds is the test set, val is taken from the
    other folds, and the declared splits are ignored.
    """
    if not (0 <= val_fraction < 1 and 0 <= test_fraction < 1 and val_fraction + test_fraction < 1):
        raise UserError(
            f"the fractions for val ({val_fraction}) and test ({test_fraction}) leave no training images; "
            "expected two numbers of at least 0 whose sum is below 1."
        )
    groups = None if group_by is None else group_numbers(image_set, group_by)
    if fold is not None:
        number, folds = parse_fold(fold)
        parts, fractions = splits_of_fold(image_set, number, folds, seed, groups), {"val": val_fraction}
        description = f"test is fold {number} of {folds}; {_describe_moves(fractions, seed, 'the other folds')}"
    elif set(image_set.declared_splits) == {"train", "val", "test"}:
        declared = np.asarray(image_set.declared_splits)
        parts = np.where((declared == "val") & (val_fraction == 0), "train", declared).astype("<U6")
        if groups is not None:
            refuse_divided_groups(parts, groups)
        _refuse_small_classes(image_set, parts == "train", 1)
        text = "train, val and test are the data's own folders"
        if val_fraction == 0:
            text = f"test is the data's own test folder; train is the data's own train and val folders, {NO_VAL_TEXT}"
        return Split(parts, text, groups)
    else:
        parts, fractions, description = _plan_moves(image_set, seed, val_fraction, test_fraction)
        if groups is not None:
            description = description.replace("cut per class", "cut by class")
    if groups is not None:
        text = f"{description}, in whole groups by {group_by!r} ({len(np.unique(groups))} groups)"
        return Split(move_groups(image_set, parts, fractions, seed, groups), text, groups)
    if image_set.multi_hot is not None:
        description = description.replace("cut per class", "cut by iterative stratification")
    return Split(_move_images(image_set, parts, fractions, seed), description)


def keep_all_for_training(image_set: ImageSet) -> Split:
    """Return a split with only training images, for a set too small to test on; refuse a class with one image."""
    _refuse_small_classes(image_set, np.ones(len(image_set), dtype=bool), 2)
    text = f"all {len(image_set)} images are for training, too few for a test set: scores are cross-validated"
    return Split(np.full(len(image_set), "train", dtype="<U6"), text)


def _plan_moves(
    image_set: ImageSet, seed: int, val_fraction: float, test_fraction: float
) -> tuple[NDArray[np.str_], dict[str, float], str]:
    """Return the (N,) splits before images of train move to val and test, the fractions to move, and a description."""
    declared_parts = set(image_set.declared_splits)
    if declared_parts in ({"train", "test"}, {"train", "val"}):
        held_out = held_out_part(declared_parts)
        parts = np.where(np.asarray(image_set.declared_splits) == held_out, "test", "train").astype("<U6")
        fractions = {"val": val_fraction}
        moves = _describe_moves(fractions, seed, "its train folder")
        return parts, fractions, f"test is the data's own {held_out} folder; {moves}"
    if declared_parts in ({""}, {"train"}):
        description = _describe_moves({"val": val_fraction, "test": test_fraction}, seed, "all images")
        # With `val_fraction` 0, the default val images move from train to train, so that the test images are the same.
        first = {"val": val_fraction} if val_fraction > 0 else {"train": DEFAULT_VAL_FRACTION}
        return np.full(len(image_set), "train", dtype="<U6"), {**first, "test": test_fraction}, description
    raise UserError(
        f"{image_set.location} has the splits {sorted(declared_parts)}; expected train with val or test, or no splits: "
        "add a train folder, or give the folder of one split."
    )


def _describe_moves(fractions: Mapping[str, float], seed: int, source: str) -> str:
    phrases = [f"{part} is {fraction:.4g} of {source}" for part, fraction in fractions.items() if fraction > 0]
    text = f"{' and '.join(phrases)}, cut per class (seed {seed})" if phrases else f"train is {source}"
    return text if fractions["val"] > 0 else f"{text}, {NO_VAL_TEXT}"


def _refuse_small_classes(image_set: ImageSet, pool: NDArray[np.bool_], min_images: int) -> None:
    counts = image_set.class_counts(np.flatnonzero(pool))
    if are_measurements(image_set.classes, float((counts < min_images).mean())) and counts.min() < min_images:
        raise UserError(
            f"the labels of {image_set.location} look like measurements ({', '.join(image_set.classes[:3])}, ...), but "
            "a classifier needs classes: group the measurements into ranges, such as 'low' and 'high'."
        )
    for name, count in zip(image_set.classes, counts, strict=True):
        if count < min_images:
            raise UserError(
                f"class '{name}' has {counted(count, 'image')} to train on; expected at least {min_images}, so that "
                "every split has an image of the class: add images, or remove the class."
            )


def _move_images(
    image_set: ImageSet, parts: NDArray[np.str_], fractions: Mapping[str, float], seed: int
) -> NDArray[np.str_]:
    """Move a fraction of the training images of every class to each split in `fractions`."""
    fractions = {part: fraction for part, fraction in fractions.items() if fraction > 0}
    min_images, is_single_label = len({"train", *fractions}), image_set.multi_hot is None
    pool, parts = parts == "train", parts.copy()
    if pool.sum() < min_images and not (image_set.classes and is_single_label):
        count = counted(int(pool.sum()), "image")
        raise UserError(f"{image_set.location} has {count}; expected at least {min_images}.")
    if image_set.classes:
        _refuse_small_classes(image_set, pool, min_images if is_single_label else 1)
    sorted_rows = argsort_strings(image_set.keys)
    sorted_rows = sorted_rows[pool[sorted_rows]]
    if image_set.multi_hot is not None:
        # Train comes first, so that the only image of a class becomes a training image.
        names, all_fractions = ["train", *fractions], [1 - sum(fractions.values()), *fractions.values()]
        part_numbers = stratify_iteratively(
            image_set.multi_hot[sorted_rows], all_fractions, derive_seed(seed, len(sorted_rows))
        )
        parts[sorted_rows] = np.asarray(names)[part_numbers]
        return parts
    for label in np.unique(image_set.labels[sorted_rows]):
        members = shuffle_class(sorted_rows[image_set.labels[sorted_rows] == label], seed, int(label))
        # The rounded fraction of the images moves to each split, at least 1, and at least 1 remains.
        sizes = {part: max(1, round(len(members) * fraction)) for part, fraction in fractions.items()}
        while sum(sizes.values()) >= len(members):
            sizes[max(sizes, key=sizes.__getitem__)] -= 1
        for part, size in sizes.items():
            parts[members[:size]] = part
            members = members[size:]
    return parts


def shuffle_class(members: NDArray[np.int64], seed: int, label: int) -> NDArray[np.int64]:
    """Return the (n,) positions of a class's images in random order; every class has random numbers of its own."""
    return np.random.default_rng(derive_seed(seed, label)).permutation(members)


def keep_train_fraction(split: Split, labels: Targets, fraction: float, seed: int) -> Split:
    """Keep a fraction of the training images of every class, at least one image; other images become "unused"."""
    if not 0 < fraction <= 1:
        raise UserError(f"the fraction of training images is {fraction}; expected a number above 0, at most 1.")
    if labels.ndim == 2:
        text = f"{fraction:.4g} of the training images are used, by iterative stratification (seed {seed})"
        return _keep_stratified_fraction(split, labels, fraction, seed, text)
    kept_counts = {
        label: max(1, round(count * fraction)) for label, count in _count_images_by_label(split, labels).items()
    }
    # The images for a smaller fraction are a subset of those for a larger fraction with the same seed.
    text = f"{fraction:.4g} of the training images of each class are used (seed {seed})"
    return _keep_counts_per_class(split, labels, kept_counts, seed, text)


def keep_train_per_class(split: Split, labels: Targets, per_class: int, seed: int) -> Split:
    """Keep up to `per_class` training images of every class; with one seed, a smaller number gives a subset."""
    if labels.ndim == 2:
        raise UserError(
            "--few-labels sets the number of images of each class, but these images may have several classes: give "
            "--fraction instead."
        )
    if per_class < 1:
        raise UserError(f"the number of training images per class is {per_class}; expected 1 or more.")
    counts = _count_images_by_label(split, labels)
    n_short = sum(count < per_class for count in counts.values())
    used_text = counted(per_class, "training image of each class is", "training images of each class are")
    text = f"{used_text} used (seed {seed})"
    if n_short:
        have = "one class that has" if n_short == 1 else f"{n_short} classes that have"
        text += f" (all images of the {have} fewer)"
    kept_counts = {label: min(per_class, count) for label, count in counts.items()}
    return _keep_counts_per_class(split, labels, kept_counts, seed, text)


def limit_val(split: Split, labels: Targets, seed: int) -> Split:
    """Keep at most as many validation images as training images, stratified by class; other images become "unused".

    Larger validation sets give too optimistic results, since users with few labels have few validation images (Oliver
    et al. 2018, "Realistic evaluation of deep semi-supervised learning algorithms").
    """
    n_train, n_val = len(split.indices("train")), len(split.indices("val"))
    if n_val <= n_train:
        return split
    text = "no more validation than training images"
    if labels.ndim == 2:
        return _keep_stratified_fraction(split, labels, n_train / n_val, seed, text, part="val")
    counts = _count_images_by_label(split, labels, "val")
    kept_counts = {label: max(1, count * n_train // n_val) for label, count in counts.items()}
    while sum(kept_counts.values()) > n_train and max(kept_counts.values()) > 1:  # rare classes were rounded up to 1
        kept_counts[max(kept_counts, key=kept_counts.__getitem__)] -= 1
    return _keep_counts_per_class(split, labels, kept_counts, seed, text, part="val")


def _keep_stratified_fraction(
    split: Split, multi_hot: Targets, fraction: float, seed: int, reason: str, part: str = "train"
) -> Split:
    """Keep a fraction of the images of a split by their (N, K) multi-hot labels; other images become "unused"."""
    pool, parts = split.indices(part), split.parts
    part_numbers = stratify_iteratively(multi_hot[pool], [fraction, 1 - fraction], derive_seed(seed, len(pool)))
    parts[pool[part_numbers == 1]] = "unused"
    return Split(parts, f"{split.description}; {reason}", split.groups)


def _count_images_by_label(split: Split, labels: Targets, part: str = "train") -> dict[int, int]:
    values, counts = np.unique(labels[split.indices(part)], return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _keep_counts_per_class(
    split: Split, labels: Targets, kept_counts: Mapping[int, int], seed: int, reason: str, part: str = "train"
) -> Split:
    pool = split.indices(part)
    parts = split.parts
    for label, count in kept_counts.items():
        members = shuffle_class(pool[labels[pool] == label], seed, label)
        parts[members[count:]] = "unused"
    return Split(parts, f"{split.description}; {reason}", split.groups)
