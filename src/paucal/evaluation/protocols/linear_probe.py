"""The linear probe of EsViT: one linear layer on frozen features by SGD, several learning rates in one pass.

The published program trains one rate per run (momentum 0.9, no weight decay, 100 epochs, cosine per epoch to 0, rate
times batch / 256, weights from N(0, 0.01)) and reports the best epoch on the images it reports on. Here every rate of
a grid is trained on the same batches at once, the best at the last epoch is chosen on validation images, a layer of
that rate is trained on training and validation images together, and the test images are seen once.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from paucal.evaluation.protocols.classifier import (
    LinearClassifier,
    require_finite,
    require_same_width,
    validation_score,
)
from paucal.metrics.measures import best_of
from paucal.metrics.named import MetricName
from paucal.types import UserError

# The published runs used 0.001 (default, Swin-B), 0.003 (Swin-S) and 0.01 (ResNet-50) per 256 images.
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0)
Batches = Callable[[int], Iterator[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class ProbeSettings:
    """The published schedule.

    Attributes:
        rates: peak learning rates per 256 images.
        epochs: passes over the training images.
        batch: images per step; the published command has 4 x 256.
        momentum: of SGD.
        deviation: of the first weights.
        seed: of the first weights and of the order of the images.
    """

    rates: Sequence[float] = RATES
    epochs: int = 100
    batch: int = 1024
    momentum: float = 0.9
    deviation: float = 0.01
    seed: int = 0


PUBLISHED = ProbeSettings()


def for_images(settings: ProbeSettings, n_images: int) -> ProbeSettings:
    """Return the settings with a batch that makes at least 16 steps in an epoch, down to 32 images.

    The published schedule makes 125,000 steps on ImageNet; with its batch a set of 1,000 images would see 100.

    Example:
        >>> [for_images(PUBLISHED, n).batch for n in (100, 1600, 1_281_167)]
        [32, 100, 1024]
    """
    return replace(settings, batch=min(settings.batch, max(32, n_images // 16)))


@dataclass(frozen=True)
class Probed:
    """The outcome.

    Attributes:
        classifier: of the best rate, trained on training and validation images.
        rate: the best one, per 256 images.
        scores: validation score of every rate.
    """

    classifier: LinearClassifier
    rate: float
    scores: dict[float, float]


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's order of images, for a seed of any size.

    Example:
        >>> epoch_seed(3, 7), epoch_seed(2**62, 1) < 2**63
        (3000016, True)
    """
    return (seed * 1_000_003 + epoch) % 2**63  # torch takes no more bits


def cached_batches(features: Tensor, labels: Tensor, settings: ProbeSettings, rows: Tensor | None = None) -> Batches:
    """Return shuffled batches of features that were extracted once, of given rows or of all."""
    labels = labels.to(features.device)
    rows = torch.arange(len(features)) if rows is None else rows

    def epoch_of(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(epoch_seed(settings.seed, epoch))
        for some in torch.randperm(len(rows), generator=generator).split(settings.batch):
            chosen = rows[some].to(features.device)
            yield features[chosen].float(), labels[chosen]

    return epoch_of


def train_probes(
    batches: Batches,
    dim: int,
    n_classes: int,
    settings: ProbeSettings,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Train one linear layer per learning rate, all on the same batches.

    Args:
        batches: from the number of an epoch to its (B, D) features and (B,) labels.
        dim: D.
        n_classes: K.
        settings: the schedule; the rate is scaled by `settings.batch` also where a batch is smaller.
        progress: called after every epoch with (done, all).

    Returns:
        (G, K, D) weights and (G, K) biases of the G rates.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    first = torch.randn(n_classes, dim, generator=generator) * settings.deviation
    state: _State | None = None
    for epoch in range(settings.epochs):
        share = 0.5 * (1 + math.cos(math.pi * epoch / settings.epochs)) * settings.batch / 256
        for features, labels in batches(epoch):
            if state is None:
                state = _State(first.to(features), settings)
            state.step(features, labels, share)
        if progress is not None:
            progress(epoch + 1, settings.epochs)
    if state is None:
        raise UserError("there are no training images for the linear probe: give some.")
    return state.weight, state.bias


def fit_probe(
    train: Batches,
    both: Batches,
    val: tuple[Tensor, Tensor],
    n_classes: int,
    settings: ProbeSettings,
    metric: MetricName = "accuracy",
    progress: Callable[[int, int], None] | None = None,
) -> Probed:
    """Train all rates, choose the one with the highest validation score, then train it on both parts together.

    Args:
        train: from the number of an epoch to features and labels of the training images.
        both: the same of training and validation images.
        val: (N, D) features and (N,) labels of the validation images.
        n_classes: K.
        settings: the schedule, the same for both trainings.
        metric: what is highest at the best rate; of equal ones the lower rate wins.
        progress: called after every epoch with (done, all).

    Raises:
        UserError: there are no validation images, or features that are no finite numbers.
    """
    if not len(val[0]):
        raise UserError("there are no validation images to choose the learning rate with: give --val-fraction 0.1.")
    require_finite(val[0], "validation images")
    trained = _trained(train, val[0].shape[1], n_classes, settings, progress, 0)
    require_same_width(trained[0].weight, val[0])
    values = [validation_score(probe, *val, metric) for probe in trained]
    best = settings.rates[best_of(values)]
    (last,) = _trained(both, val[0].shape[1], n_classes, replace(settings, rates=(best,)), progress, settings.epochs)
    return Probed(last, best, dict(zip(settings.rates, values, strict=True)))


def _trained(
    batches: Batches,
    dim: int,
    n_classes: int,
    settings: ProbeSettings,
    progress: Callable[[int, int], None] | None,
    before: int,
) -> list[LinearClassifier]:
    """Return a classifier per rate; progress counts on from the epochs of the training before."""

    def advance(done: int, total: int) -> None:
        if progress is not None:
            progress(before + done, 2 * total)

    weights, biases = train_probes(batches, dim, n_classes, settings, advance)
    return [LinearClassifier(*pair) for pair in zip(weights, biases, strict=True)]


class _State:
    """Weights, biases and momentum of all rates; the gradient of softmax regression is written out."""

    def __init__(self, first: Tensor, settings: ProbeSettings) -> None:
        self.rates = torch.tensor(settings.rates, device=first.device, dtype=first.dtype)
        self.momentum = settings.momentum
        self.weight = first.expand(len(self.rates), *first.shape).clone()
        self.bias = first.new_zeros(len(self.rates), len(first))
        self._moved = torch.zeros_like(self.weight), torch.zeros_like(self.bias)

    def step(self, features: Tensor, labels: Tensor, share: float) -> None:
        """One step of SGD with momentum for every rate, which is `share` times its own."""
        count, width = self.bias.shape
        logits = (features @ self.weight.flatten(0, 1).T).view(-1, count, width) + self.bias
        error = (logits.softmax(2) - F.one_hot(labels, width)[:, None]) / len(features)
        gradients = (error.flatten(1).T @ features).view_as(self.weight), error.sum(0)
        rates = self.rates * share
        for value, moved, gradient in zip((self.weight, self.bias), self._moved, gradients, strict=True):
            moved.mul_(self.momentum).add_(gradient)
            value.sub_(rates.view(-1, *[1] * (value.ndim - 1)) * moved)
