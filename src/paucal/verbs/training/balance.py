"""What a run does about classes of different sizes."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paucal.methods.training_settings import TrainSettings
from paucal.objectives import Objective, Supervised
from paucal.types import UserError
from paucal.verbs.run.images import Prepared


def balanced_weights(counts: NDArray[np.int64]) -> Tensor:
    """Return (K,) weights with which every class weighs the same in all, and an image 1 on average.

    The weight of a class is N / (K' n) with n images of N in all, as scikit-learn's "balanced" (King and Zeng 2001,
    "Logistic regression in rare events data"); K' counts the classes that have images, and one without any gets 1.

    Example:
        >>> balanced_weights(np.array([30, 10])).tolist()
        [0.6666666865348816, 2.0]
    """
    present = counts > 0
    weights = np.where(present, counts.sum() / (present.sum() * np.maximum(counts, 1)), 1.0)
    return torch.from_numpy(weights).float()


def positive_weights(multi_hot: NDArray[np.int8]) -> Tensor:
    """Return (K,) factors on the loss of a class's images with which they weigh as much as all others.

    Args:
        multi_hot: (N, K) of 1, 0 and -1 (unknown).

    Example:
        >>> positive_weights(np.array([[1, 0], [0, 0], [0, 1], [0, 1]])).tolist()
        [3.0, 1.0]
    """
    positive, negative = (multi_hot == 1).sum(0), (multi_hot == 0).sum(0)
    return torch.from_numpy(np.where(positive > 0, negative / np.maximum(positive, 1), 1.0)).float()


def suit_labels(settings: TrainSettings, prepared: Prepared, objective: Objective) -> None:
    """Have an objective learn one sigmoid per class, where images may have several labels.

    Raises:
        UserError: the method learns from one label for each image only, or epochs are to be balanced by it.
    """
    if prepared.images.multi_hot is None:
        return
    if not isinstance(objective, Supervised):
        raise UserError(
            f"--method {settings.method} needs one label for each image, and these have several: give --method "
            "supervised or drloc, or --label-separator none where a cell names one class."
        )
    if settings.sampling == "balanced":
        raise UserError(
            "--sampling balanced shows as many images of every class, and these images are of several at once: leave "
            "it out, or give --class-weights auto."
        )
    objective.judge_classes_apart()


def balance(settings: TrainSettings, prepared: Prepared, objective: Objective) -> None:
    """Weigh the classes in an objective's loss, where the settings say so.

    Raises:
        UserError: the method has no loss of labels that could be weighed, both ways are asked for at once, or as many
            images of every class are asked for from shards.
    """
    if settings.sampling == "balanced" and prepared.images.stream is not None:
        raise UserError(
            "--sampling balanced jumps between all shards for every batch, which is too slow to train with: use "
            "--class-weights auto."
        )
    if settings.class_weights == "none":
        return
    if settings.sampling == "balanced":
        raise UserError(
            "--class-weights auto and --sampling balanced do the same twice over, which favours rare classes: leave "
            "one of them out."
        )
    if not isinstance(objective, Supervised):
        raise UserError(
            f"--class-weights: --method {settings.method} learns from label maps, which have no weights of classes: "
            "use --sampling balanced."
        )
    train, rows = prepared.part("train"), prepared.images.multi_hot
    several = None if rows is None else positive_weights(rows[train])
    objective.weigh_classes(balanced_weights(prepared.images.class_counts(train)) if several is None else several)
