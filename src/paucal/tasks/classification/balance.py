"""Class weights for the losses of a classifier, and checks of `--class-weights` and `--sampling`."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paucal.methods.training_settings import TrainSettings
from paucal.objectives import Objective, Supervised
from paucal.runner.images import SplitImages
from paucal.types import UserError


def balanced_class_weights(counts: NDArray[np.int64]) -> Tensor:
    """Return (K,) class weights that give all classes the same total weight; the mean weight of the images is 1.

    A class with n of the N images gets the weight N / (K' n), where K' is the number of classes with images, as in
    scikit-learn's "balanced" (King and Zeng 2001, "Logistic regression in rare events data"). A class without images
    gets weight 1.

    Example:
        >>> balanced_class_weights(np.array([30, 10])).tolist()
        [0.6666666865348816, 2.0]
    """
    has_images = counts > 0
    weights = np.where(has_images, counts.sum() / (has_images.sum() * np.maximum(counts, 1)), 1.0)
    return torch.from_numpy(weights).float()


def positive_weights(multi_hot: NDArray[np.int8]) -> Tensor:
    """Return (K,) loss weights that give the positive images of a class the same total weight as its negative images.

    Args:
        multi_hot: (N, K) labels of 1, 0 and -1 (unknown).

    Example:
        >>> positive_weights(np.array([[1, 0], [0, 0], [0, 1], [0, 1]])).tolist()
        [3.0, 1.0]
    """
    positive, negative = (multi_hot == 1).sum(0), (multi_hot == 0).sum(0)
    return torch.from_numpy(np.where(positive > 0, negative / np.maximum(positive, 1), 1.0)).float()


def use_sigmoids_if_multi_label(settings: TrainSettings, data: SplitImages, objective: Objective) -> None:
    """Switch an objective to one sigmoid per class if images may have several labels."""
    if data.images.multi_hot is None:
        return
    if not isinstance(objective, Supervised):
        raise UserError(
            f"--method {settings.method} needs one label per image, but these images may have several labels: give "
            "--method supervised or drloc, or --label-separator none if each table cell is the name of one class."
        )
    if settings.sampling == "balanced":
        raise UserError(
            "--sampling balanced draws the same number of images from every class, but these images may have several "
            "classes each: remove --sampling, or use --class-weights auto instead."
        )
    objective.use_sigmoids()


def set_class_weights(settings: TrainSettings, data: SplitImages, objective: Objective) -> None:
    """Weight the classes in an objective's loss as `--class-weights` says; refuse unsupported sampling."""
    if settings.sampling == "balanced" and data.images.stream is not None:
        raise UserError(
            "--sampling balanced would read from all shards for every batch, which is too slow for training: use "
            "--class-weights auto."
        )
    if settings.class_weights == "none":
        return
    if settings.sampling == "balanced":
        raise UserError(
            "--class-weights auto and --sampling balanced would both favour rare classes: give only one of the two."
        )
    if not isinstance(objective, Supervised):
        raise UserError(
            f"--class-weights is not supported for --method {settings.method}, which learns from label maps: "
            "use --sampling balanced."
        )
    train, labels = data.split_indices("train"), data.images.multi_hot
    weights = (
        balanced_class_weights(data.images.class_counts(train)) if labels is None else positive_weights(labels[train])
    )
    objective.set_class_weights(weights)
