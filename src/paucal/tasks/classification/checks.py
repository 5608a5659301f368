"""Refuse settings that the images or the model of a classification run do not support, and weight its classes."""

import shlex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.sources.joining import SEPARATOR
from paucal.methods.supervised import check_tuning
from paucal.methods.training_settings import TrainSettings
from paucal.models.card import ModelCard
from paucal.models.features import linear_classifier
from paucal.objectives import Objective, Supervised
from paucal.runner.images import SplitImages
from paucal.runner.trainer_plan import check_rates
from paucal.tasks.classification.auto_tune.record import TuneRecord
from paucal.tasks.classification.frozen_views import why_unsupported
from paucal.tasks.classification.trainer_inputs import make_view_transform
from paucal.types import UserError


def check_new_run(settings: TrainSettings, tune_record: TuneRecord | None, in_memory: bool) -> None:
    """Refuse settings of a new run that need frozen features, such as `--curve`, if the run computes none."""
    check_rates(settings)
    has_frozen_features = tune_record is not None and bool(tune_record.candidates)
    if settings.epochs == 0 and not in_memory:
        raise UserError(
            "--epochs 0 keeps the linear probe, which needs the features of all images in memory, but these shards "
            "are streamed: give --epochs 1 or more, or train on a subset that is small enough to be decoded once."
        )
    if settings.curve and not has_frozen_features:
        raise UserError(
            "--curve fits heads to the frozen features of pretrained weights, but this run computes no such "
            "features: remove --curve, or compare label fractions with 'paucal compare --labels 25% 50% 100%'."
        )
    if settings.unlabelled is not None and not has_frozen_features:
        raise UserError(
            "--unlabelled fits a head to the frozen features of pretrained weights, but this run computes no such "
            "features. Remove --unlabelled, and pretrain on these images with 'paucal pretrain'; or label the images "
            f"with another run ('paucal predict RUN {shlex.quote(settings.unlabelled)} --to csv --output PREDICTIONS') "
            f"and train on {shlex.quote(f'{settings.data}{SEPARATOR}PREDICTIONS')} with --val-fraction 0. Then "
            f"{settings.data} needs a 'test' folder, since predicted labels must not be used for evaluation."
        )
    if settings.epochs == 0 and not has_frozen_features:
        raise UserError(
            "--epochs 0 keeps the linear probe of pretrained weights, but this run starts from random weights: "
            "give --epochs 1 or more."
        )


def check_objective(
    objective: Objective, settings: TrainSettings, card: ModelCard, data: SplitImages, is_new: bool
) -> None:
    """Refuse settings that the objective does not support."""
    if is_new and settings.unlabelled is not None and data.images.multi_hot is not None:
        raise UserError(
            "--unlabelled needs images with one label each, but these may have several labels: remove --unlabelled."
        )
    if is_new and settings.unlabelled is not None and linear_classifier(objective.deployable()) is None:
        raise UserError(
            f"--unlabelled replaces the model's linear classifier, but {settings.model} has no linear classifier: "
            "remove --unlabelled."
        )
    check_tuning(settings, objective, data.images.class_counts(data.split_indices("train")).tolist())
    request = objective.data_request
    if settings.frozen_views and (reason := why_unsupported(settings, objective)) is not None:
        raise UserError(f"--frozen-views is not supported here: {reason}.")
    if settings.batch_size_or_1 < request.smallest_batch:
        raise UserError(
            f"--batch-size is {settings.batch_size_or_1}, but --method {settings.method} needs at least "
            f"{request.smallest_batch} images in a forward pass: give a larger --batch-size."
        )
    for crops in request.views:  # built only to refuse invalid augmentation before the run starts
        make_view_transform(crops, card.preprocessing, settings, request.geometry)


def balanced_class_weights(counts: NDArray[np.int64]) -> Tensor:
    """Return (K,) class weights that give all classes the same total weight; the mean weight of the images is 1.

    A class with n of the N images gets the weight N / (K' n), where K' is the number of classes with images, as in
    scikit-learn's "balanced" (King and Zeng 2001, "Logistic regression in rare events data"). A class without images
    gets weight 1.
    """
    has_images = counts > 0
    weights = np.where(has_images, counts.sum() / (has_images.sum() * np.maximum(counts, 1)), 1.0)
    return torch.from_numpy(weights).float()


def positive_weights(multi_hot: NDArray[np.int8]) -> Tensor:
    """Return (K,) loss weights that balance each class's positive (1) and negative (0) images; -1 is unknown."""
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
