"""Comparison of an exported model with its original on real images."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from paucal.models.trained import TrainedModel

Classifier = Callable[[Tensor], Tensor]  # maps a batch of inputs to logits or probabilities
TIMED = 8  # timed calls of each of the two models, in turn
WARM = 2


@dataclass(frozen=True)
class Comparison:
    """How an exported model answers for images, and how fast.

    Attributes:
        images: Number of images on which the models are compared.
        largest: Largest difference of a class's probability.
        agreement: Share of the images for which both models give the same class (all classes, for several labels).
        milliseconds: Median milliseconds per image of the original and of the exported model, measured in turn.
        top1: Accuracy of both models; None if the labels are not known.
    """

    images: int
    largest: float
    agreement: float
    milliseconds: tuple[float, float]
    top1: tuple[float, float] | None = None


def answers(
    model: TrainedModel,
    classifier: Classifier,
    images: Sequence[Image.Image],
    pixels: bool,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """Return the (N, K) float64 probabilities of an exported model for images.

    Args:
        model: Original model, which knows the preprocessing and the temperature.
        classifier: Exported model.
        images: Upright RGB images.
        pixels: Whether the graph takes bytes and returns probabilities.
        progress: Called with (images done, images in all).
    """
    found = []
    with torch.inference_mode():
        for number, image in enumerate(images, start=1):
            given = classifier(fed(model, image, pixels)).double()
            found.append(given if pixels else model.card.shares(given))
            progress(number, len(images))
    return torch.cat(found)


def fed(model: TrainedModel, image: Image.Image, pixels: bool) -> Tensor:
    """Return an image as the input of an exported model, a batch of one."""
    if pixels:
        return torch.from_numpy(np.array(image))[None]
    return model.card.preprocessing.transform()(image)[0][None]


def compare(
    original: Tensor,
    exported: Tensor,
    speed: tuple[float, float],
    labels: Tensor | None,
    thresholds: Sequence[float] | None = None,
) -> Comparison:
    """Return how two models' probabilities differ.

    Args:
        original: (N, K) probabilities of the original.
        exported: (N, K) probabilities of the exported model; NaN counts as a wrong answer.
        speed: Milliseconds per image of both models.
        labels: (N,) in [0, K), if they are known.
        thresholds: (K,) thresholds of a model for several labels.
    """
    answered = exported.nan_to_num(-1.0)
    ours, theirs = original.argmax(1), answered.argmax(1)
    alike = ours == theirs
    if thresholds is not None:
        least = torch.tensor(thresholds, dtype=original.dtype)
        alike = ((original >= least) == (answered >= least)).all(1)
    largest = float((original - exported).abs().max()) if bool(exported.isfinite().all()) else math.inf
    top1 = None
    if labels is not None:
        top1 = float((ours == labels).double().mean()), float((theirs == labels).double().mean())
    return Comparison(len(original), largest, float(alike.double().mean()), speed, top1)


def timed(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Return the median milliseconds of two functions, called in turn."""
    found: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        for number in range(TIMED + WARM):
            for call, times in zip((first, second), found, strict=True):
                begin = time.perf_counter()
                call()
                if number >= WARM:
                    times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(found[0]), statistics.median(found[1])
