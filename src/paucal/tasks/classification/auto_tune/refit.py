"""Fit linear heads to the features of a tuned network: the same heads that were compared for the first model.

Tuning trains the network's own head for few steps only, and heads that also read the last stages are often better. The
fits need one forward pass over the training images. Heads are compared on the validation images. Cross-validation on
the training images would be biased, since the network was tuned on these images.

If unlabelled images improved the first model, heads also learn from the tuned features of these images.
"""

from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from paucal.backbones.stage_classifier import last_stage_poolings
from paucal.data.images import ImageSet
from paucal.evaluation.calibration import fit_temperature
from paucal.evaluation.predictions import Predictions
from paucal.runner.console import Console
from paucal.runner.images import compute_frozen_features
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.auto_tune.first_model import classifier_in_features
from paucal.tasks.classification.auto_tune.heads import DEFAULT_HEAD, HEADS, fit_mixture
from paucal.tasks.classification.auto_tune.probe import DEFAULT_STRENGTH, Head, fit_head, score_head, stratified_sample
from paucal.tasks.classification.auto_tune.record import calibrated_losses
from paucal.tasks.classification.auto_tune.resumed_features import FrozenOutputs, ResumableFeatureExtractor
from paucal.tasks.classification.auto_tune.unlabelled_head import LABELS_ALONE, compute_principal_axes, fit_heads
from paucal.tasks.classification.images import as_training_split


@dataclass(frozen=True)
class RefittedHead:
    """A head on the features of a tuned network, with its validation score."""

    name: str
    head: Head  # fitted head, with calibrated weights and biases
    staged: bool  # whether the head also reads the last stages
    score: float  # accuracy on the validation images
    losses: list[float]  # calibrated cross-entropy of each validation image, in nats


def refit_head(
    setup: TrainingSetup, network: nn.Module, console: Console, unlabelled: ImageSet | FrozenOutputs | None = None
) -> RefittedHead | None:
    """Fit heads to the features of a tuned network; return the head with the lowest loss on the validation images.

    The heads are fitted to as many training images as the first model's head. If `unlabelled` is given, as images or as
    outputs of the network's frozen stages, some heads are also fitted to these images. Returns None for images with
    several labels, and for a run without a probe.
    """
    record, data, card = setup.tune_record, setup.data, setup.card
    if record is None or record.probe is None or data.images.multi_hot is not None:
        return None
    staged = bool(last_stage_poolings(network, card.backbone.image_size))
    train, val = data.split_indices("train"), data.split_indices("val")
    labels, seed = torch.from_numpy(data.images.targets).long(), setup.settings.seed
    images = int(record.probe.details.get("images", len(train)))
    if images < len(train):
        train = train[stratified_sample(labels[train], images, seed).numpy()]
    rows = np.concatenate([train, val])

    with console.progress("features of the tuned network") as advance:
        features = compute_frozen_features(network, data, rows, card.preprocessing, setup.settings, advance, staged)
    unlabelled_features = (
        None if unlabelled is None else _compute_unlabelled_features(setup, network, console, unlabelled, staged)
    )
    row_labels, count, n_classes = labels[rows], len(train), len(card.classes)
    last = features[:, : classifier_in_features(network)]
    truth, groups = row_labels[count:], data.split.groups
    groups = None if groups is None else torch.from_numpy(groups[train])

    def evaluate(name: str, head: Head, values: Tensor) -> RefittedHead:
        temperature = fit_temperature(head.scores(values[count:]), truth)
        head = replace(head, weight=head.weight / temperature, bias=head.bias / temperature)
        losses = calibrated_losses(Predictions(torch.from_numpy(val), head.scores(values[count:]), truth))
        return RefittedHead(name, head, values is features, score_head(head, values[count:], truth), losses)

    with threadpool_limits(1):
        regression = fit_head(last[:count], row_labels[:count], n_classes, seed, groups=groups)
        candidates = [evaluate(DEFAULT_HEAD, regression, last)]
        for name in HEADS if staged else ():
            weights = fit_mixture(features[:count], row_labels[:count], n_classes, {name: 1.0})
            candidates.append(evaluate(name, Head(*weights, DEFAULT_STRENGTH, None), features))
        best = min(candidates, key=lambda candidate: sum(candidate.losses))
        if unlabelled_features is None:
            return best
        values = features if staged else last
        padded_weight = torch.zeros(n_classes, values.shape[1])
        padded_weight[:, : best.head.weight.shape[1]] = best.head.weight
        pool = compute_principal_axes(unlabelled_features)
        heads = fit_heads(
            values[:count], row_labels[:count], n_classes, pool, fit_base=lambda *_: (padded_weight, best.head.bias)
        )
        candidates += [
            evaluate(name, Head(weight.float(), bias.float(), DEFAULT_STRENGTH, None), values)
            for name, (weight, bias) in heads.items()
            if name != LABELS_ALONE
        ]
    return min(candidates, key=lambda candidate: sum(candidate.losses))


def _compute_unlabelled_features(
    setup: TrainingSetup, network: nn.Module, console: Console, unlabelled: ImageSet | FrozenOutputs, staged: bool
) -> Tensor:
    settings, preprocess = setup.settings, setup.card.preprocessing
    with console.progress("tuned features of images without labels") as advance:
        if isinstance(unlabelled, ImageSet):
            data, rows = as_training_split(unlabelled), np.arange(len(unlabelled))
            return compute_frozen_features(network, data, rows, preprocess, settings, advance, staged)
        assert isinstance(settings.freeze, int)
        network = network.to(settings.device)
        with closing(ResumableFeatureExtractor(network, preprocess.image_size, staged, settings.freeze)) as resumable:
            return resumable.resume_all(unlabelled, advance)
