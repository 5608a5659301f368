"""Use fewer images of a split: a fraction or a number per class for training, and no more images for validation."""

from collections.abc import Mapping

import numpy as np

from paucal.data.images import Targets
from paucal.data.randomness import derive_seed
from paucal.data.splits.groups import stratify_iteratively
from paucal.data.splits.split import Split, shuffle_class
from paucal.types import UserError
from paucal.wording import counted


def keep_train_fraction(split: Split, labels: Targets, fraction: float, seed: int) -> Split:
    """Keep a fraction of the training images of every class, at least one image; other images become "unused".

    If each image has one label, the images for a smaller fraction are a subset of those for a larger fraction with the
    same seed. Images with (N, K) multi-hot labels are chosen by iterative stratification.
    """
    if not 0 < fraction <= 1:
        raise UserError(f"the fraction of training images is {fraction}; expected a number above 0, at most 1.")
    if labels.ndim == 2:
        text = f"{fraction:.4g} of the training images are used, by iterative stratification (seed {seed})"
        return _keep_stratified_fraction(split, labels, fraction, seed, text)
    kept_counts = {
        label: max(1, round(count * fraction)) for label, count in _count_images_by_label(split, labels).items()
    }
    text = f"{fraction:.4g} of the training images of each class are used (seed {seed})"
    return _keep_counts_per_class(split, labels, kept_counts, seed, text)


def keep_train_per_class(split: Split, labels: Targets, per_class: int, seed: int) -> Split:
    """Keep `per_class` training images of every class; the other training images become "unused".

    A class with fewer images keeps all of its images, and the description says so. With the same seed, the images for a
    smaller `per_class` are a subset of those for a larger `per_class`.
    """
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

    Results with a larger validation set would be too optimistic, since users with few labels have few validation images
    in practice (Oliver et al. 2018, "Realistic evaluation of deep semi-supervised learning algorithms").
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
