"""EsViT's linear probe: a linear layer trained on frozen features with SGD, for several learning rates at once.

The published code trains with one learning rate per run. The code uses momentum 0.9, no weight decay, 100 epochs, a
cosine schedule to 0 that changes once per epoch, a rate proportional to batch / 256, and initial weights from a normal
distribution with standard deviation 0.01. The reported score is that of the best epoch, which is selected on the same
images.

Here, one layer per rate is trained on the same batches. The rate with the best score after the last epoch is selected
on validation images or by cross-validation. A layer with this rate is then trained on training and validation images
together, and the test images are used once.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paucal.data.dataset import ViewDataset, collate
from paucal.data.images import ImageSet
from paucal.data.loader import make_ordered_loader
from paucal.data.randomness import derive_seed
from paucal.data.views.augmentation import Augmentation
from paucal.data.views.transforms import TrainTransform
from paucal.evaluation.protocols.classifier import (
    LinearClassifier,
    draw_folds,
    require_finite,
    take_rows,
    validation_score,
)
from paucal.evaluation.protocols.features import Advance, Extraction, FeatureKind, FeatureReader
from paucal.metrics.measures import MetricName, nan_argmax
from paucal.models.named import FrozenBackbone
from paucal.types import UserError

# Learning rates for a batch of 256 images. The rates are scaled in proportion to the batch size. The published runs
# used 0.001 (the default and for Swin-B), 0.003 (Swin-S) and 0.01 (ResNet-50).
LEARNING_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0)
# The published augmentation: only torchvision's RandomResizedCrop of 8 to 100 % of the area (bilinear) and mirroring.
PROBE_AUGMENTATION = Augmentation(rand_augment=None, erase_prob=0.0, interpolation="bilinear")
Batches = Callable[[int], Iterator[tuple[Tensor, Tensor]]]  # batches of an epoch: (B, D) features and (B,) labels


@dataclass(frozen=True)
class ProbeSettings:
    """Training settings of the linear probe; the defaults are the published settings."""

    rates: Sequence[float] = LEARNING_RATES  # peak learning rates for a batch of 256 images
    epochs: int = 100  # number of epochs
    batch: int = 1024  # number of images per step; the published command uses 4 x 256
    momentum: float = 0.9  # momentum of SGD
    deviation: float = 0.01  # standard deviation of the initial weights
    seed: int = 0  # seed of the initial weights and of the order of the images


PUBLISHED = ProbeSettings()


def limit_batch_size(settings: ProbeSettings, n_images: int) -> ProbeSettings:
    """Return the settings with a smaller batch (at least 32 images) if an epoch would have fewer than 16 steps.

    The published schedule has 125,000 steps on ImageNet. With the published batch, a set of 1,000 images would be
    trained for only 100 steps.

    >>> [limit_batch_size(PUBLISHED, n).batch for n in (100, 1600, 1_281_167)]
    [32, 100, 1024]
    """
    return replace(settings, batch=min(settings.batch, max(32, n_images // 16)))


@dataclass(frozen=True)
class FittedProbe:
    """A linear probe trained with the learning rate of the highest validation score."""

    classifier: LinearClassifier
    rate: float
    scores: dict[float, float]  # validation score of each learning rate


def cached_batches(features: Tensor, labels: Tensor, settings: ProbeSettings, rows: Tensor | None = None) -> Batches:
    """Return shuffled batches of extracted features of the images in `rows`; if `rows` is None, of all images."""
    labels = labels.to(features.device)
    rows = torch.arange(len(features)) if rows is None else rows

    def iterate_epoch(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        seed = (settings.seed * 1_000_003 + epoch) % 2**63  # torch does not accept larger seeds
        generator = torch.Generator().manual_seed(seed)
        for indices in torch.randperm(len(rows), generator=generator).split(settings.batch):
            batch = rows[indices].to(features.device)
            yield features[batch].float(), labels[batch]

    return iterate_epoch


def train_probes(
    batches: Batches, dim: int, n_classes: int, settings: ProbeSettings, progress: Advance | None = None
) -> tuple[Tensor, Tensor]:
    """Train one linear layer per learning rate, all on the same batches; return (G, K, D) weights and (G, K) biases.

    K is the number of classes, D the number of features `dim`, and G the number of learning rates. The rates are scaled
    by `settings.batch`, even if the last batch is smaller. `progress` is called after each epoch with (epochs done,
    total epochs).
    """
    generator = torch.Generator().manual_seed(settings.seed)
    initial_weight = torch.randn(n_classes, dim, generator=generator) * settings.deviation
    # Rates, weights, biases and their momentum buffers, on the device of the batches. Autograd is not used.
    state: list[Tensor] = []
    for epoch in range(settings.epochs):
        rate_factor = 0.5 * (1 + math.cos(math.pi * epoch / settings.epochs)) * settings.batch / 256
        for features, labels in batches(epoch):
            if not state:
                rates = features.new_tensor(settings.rates)
                weight = initial_weight.to(features).expand(len(rates), n_classes, dim).clone()
                bias = weight.new_zeros(len(rates), n_classes)
                state = [rates, weight, bias, torch.zeros_like(weight), torch.zeros_like(bias)]
            rates, weight, bias, *buffers = state
            logits = (features @ weight.flatten(0, 1).T).view(-1, len(rates), n_classes) + bias
            error = (logits.softmax(2) - F.one_hot(labels, n_classes)[:, None]) / len(features)
            gradients = (error.flatten(1).T @ features).view_as(weight), error.sum(0)
            scaled_rates = rates * rate_factor
            for value, buffer, gradient in zip((weight, bias), buffers, gradients, strict=True):
                buffer.mul_(settings.momentum).add_(gradient)
                value.sub_(scaled_rates.view(-1, *[1] * (value.ndim - 1)) * buffer)
        if progress is not None:
            progress(epoch + 1, settings.epochs)
    if not state:
        raise UserError("there are no training images for the linear probe: give a data set with training images.")
    return state[1], state[2]


def fit_probe(
    train: Batches,
    both: Batches,
    val: tuple[Tensor, Tensor],
    n_classes: int,
    settings: ProbeSettings,
    metric: MetricName = "accuracy",
    progress: Advance | None = None,
) -> FittedProbe:
    """Select the rate with the highest validation score, then train with this rate on both splits.

    `train` are batches of the training images, and `both` of training and validation images together. `val` are the
    (N, D) features and (N,) labels of the validation images. Of rates with equal scores, the lower rate is selected.
    """
    if not len(val[0]):
        raise UserError("there are no validation images to select the learning rate with: give --val-fraction 0.1.")
    require_finite(val[0], "validation images")
    return _fit_best([(train, settings, val)], 1, both, n_classes, settings, metric, progress)


def fit_probe_by_folds(
    train: tuple[Tensor, Tensor],
    batches: Batches,
    n_classes: int,
    settings: ProbeSettings,
    metric: MetricName = "accuracy",
    progress: Advance | None = None,
) -> FittedProbe:
    """Select the learning rate by cross-validation, then train with this rate on all training images.

    The rate with the highest mean of `metric` over the folds is selected; if means are equal, the lower rate. `train`
    are the (N, D) features of the unaugmented images and the (N,) labels on which the rate is selected. `batches` are
    those of the final training, possibly of augmented views.
    """
    features, labels = train
    require_finite(features, "training images")
    splits = draw_folds(labels, settings.seed)
    fold_settings = [limit_batch_size(settings, len(rows)) for rows, _ in splits]
    folds = (
        (cached_batches(features, labels, limited, rows), limited, take_rows(train, held_out))
        for limited, (rows, held_out) in zip(fold_settings, splits, strict=True)
    )
    return _fit_best(folds, len(splits), batches, n_classes, settings, metric, progress)


def _fit_best(
    folds: Iterable[tuple[Batches, ProbeSettings, tuple[Tensor, Tensor]]],
    n_folds: int,
    batches: Batches,
    n_classes: int,
    settings: ProbeSettings,
    metric: MetricName,
    progress: Advance | None,
) -> FittedProbe:
    """Train on `batches` with the rate that has the highest mean score over the folds.

    Each fold has batches of training images with their schedule, and the features and labels of its other images.
    """
    scores, dim, n_trainings = [], 0, 0

    def advance(done: int, total: int) -> None:
        """Report the epochs of all trainings so far."""
        if progress is not None:
            progress(n_trainings * total + done, (n_folds + 1) * total)

    for fold_batches, schedule, val in folds:
        dim = val[0].shape[1]
        probes = zip(*train_probes(fold_batches, dim, n_classes, schedule, advance), strict=True)
        scores.append([validation_score(LinearClassifier(weight, bias), *val, metric) for weight, bias in probes])
        n_trainings += 1
    means = np.mean(scores, axis=0).tolist()
    rate = settings.rates[nan_argmax(means)]
    weight, bias = train_probes(batches, dim, n_classes, replace(settings, rates=(rate,)), advance)
    return FittedProbe(LinearClassifier(weight[0], bias[0]), rate, dict(zip(settings.rates, means, strict=True)))


def augmented_batches(
    subject: FrozenBackbone,
    images: ImageSet,
    rows: tuple[NDArray[np.int64], Tensor],
    kind: FeatureKind,
    settings: ProbeSettings,
    extraction: Extraction,
) -> Batches:
    """Return batches of features of augmented views, drawn anew in every epoch; `rows` are positions and labels."""
    indices, labels = rows
    plain = subject.preprocessing.transform()
    transform = TrainTransform(plain.size, PROBE_AUGMENTATION, plain.normalisation, resize=plain.resize)
    dataset = ViewDataset(images, [(transform, 1)], settings.seed, with_labels=False)
    label_of = dict(zip(indices.tolist(), labels.tolist(), strict=True))

    def iterate_epoch(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = np.random.default_rng(derive_seed(settings.seed, epoch)).permutation(indices)
        loader = make_ordered_loader(dataset, order, settings.batch, collate, extraction.workers, epoch=epoch)
        reader = FeatureReader(subject.backbone, [kind])
        try:
            for batch in loader:
                chunks = batch.views[0].split(extraction.batch_size)
                with torch.inference_mode():
                    features = torch.cat([reader(chunk.to(subject.device))[0].float() for chunk in chunks])
                targets = torch.tensor([label_of[index] for index in batch.ids.tolist()], device=features.device)
                yield features.clone(), targets
        finally:
            reader.close()

    return iterate_epoch
