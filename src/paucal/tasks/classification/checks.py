"""Checks of a classification run before it starts: refuse settings that its images or its model do not support."""

import shlex

from paucal.data.images import ImageSet
from paucal.data.sources.joining import SEPARATOR
from paucal.methods.supervised import check_tuning
from paucal.methods.training_settings import TrainSettings
from paucal.models.card import ModelCard
from paucal.models.features import linear_classifier
from paucal.objectives import Objective
from paucal.runner.images import SplitImages
from paucal.runner.trainer_inputs import check_rates
from paucal.tasks.classification.auto_tune.record import TuneRecord
from paucal.tasks.classification.frozen_views import why_unsupported
from paucal.tasks.classification.loaders import make_view_transform
from paucal.types import UserError


def check_new_run(settings: TrainSettings, tune_record: TuneRecord | None, in_memory: bool) -> None:
    """Refuse settings of a new run that need frozen features, such as `--curve`, if the run computes none.

    `in_memory` is False for streamed images.
    """
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
    if is_new and settings.unlabelled is not None:
        _check_unlabelled(settings, data.images, objective)
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


def _check_unlabelled(settings: TrainSettings, images: ImageSet, objective: Objective) -> None:
    if images.multi_hot is not None:
        raise UserError(
            "--unlabelled needs images with one label each, but these may have several labels: remove --unlabelled."
        )
    if linear_classifier(objective.deployable()) is None:
        raise UserError(
            f"--unlabelled replaces the model's linear classifier, but {settings.model} has no linear classifier: "
            "remove --unlabelled."
        )
