"""Comparison of an exported model with its original on real images."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.ops import box_iou

from paucal.data.masks.coding import IGNORED
from paucal.models.trained import TrainedModel

SHOWN, OVERLAP = 0.3, 0.9  # lowest score of a compared object, and smallest overlap with its match in the other table


@dataclass(frozen=True)
class Comparison:
    """How the predictions and the speed of an exported model compare with those of its original.

    Attributes:
        images: Number of images on which the models are compared.
        largest: Largest difference of a class's probability.
        agreement: Share of the images for which both models give the same class (all classes, for several labels); of
            the pixels for a segmenter, of the objects for a detector.
        milliseconds: Median milliseconds per image of the original and of the exported model, measured in turn.
        accuracy: Share of right answers of both models, of images or of pixels; None if the labels are not known.
        size: Size of the files in bytes.
    """

    images: int
    largest: float
    agreement: float
    milliseconds: tuple[float, float]
    accuracy: tuple[float, float] | None = None
    size: int = 0


class Difference(NamedTuple):
    """How the predictions of two models for one image differ.

    Attributes:
        largest: Largest difference of a probability.
        same: Share of equal answers.
        right: Share of right answers of the original and of the exported model; None if the labels are not known.
    """

    largest: float
    same: float
    right: tuple[float, float] | None


class Classifier:
    """The network of a trained classifier, which predicts as in `paucal predict`."""

    def __init__(self, model: TrainedModel) -> None:
        self.card, self.network = model.card, model.module.eval()
        self._transform = model.card.preprocessing.transform()

    def prepare(self, image: Image.Image, pixels: bool) -> Tensor:
        """Return an image as the input of a graph, a batch of one; bytes for a graph with its preprocessing inside."""
        return torch.from_numpy(np.array(image))[None] if pixels else self._transform(image)[0][None]

    def ask(self, network: nn.Module, given: Tensor, pixels: bool) -> Tensor:
        """Return the (K,) probabilities of a prepared image."""
        output = network(given)
        return (output if pixels else self.card.shares(output))[0]

    def compare(self, own: Tensor, exported: Tensor, label: Tensor | None) -> Difference:
        """Return how the predictions of two models for one image differ."""
        return compare(own, exported, label, self.card.thresholds)


def compare(own: Tensor, exported: Tensor, label: Tensor | None, thresholds: Sequence[float] | None) -> Difference:
    """Return the differences of two models' probabilities for an image.

    Args:
        own: (K,) probabilities of an image, or (K, H, W) of its pixels.
        exported: Probabilities of the exported model; NaN counts as a wrong prediction.
        label: Class in [0, K), or (H, W) classes, if they are known; ignored pixels are not counted.
        thresholds: (K,) thresholds of a model for several labels.
    """
    answered = exported.nan_to_num(-1.0)
    own_classes, other_classes = own.argmax(0), answered.argmax(0)
    agreement = float((own_classes == other_classes).double().mean())
    if thresholds is not None:
        least = torch.tensor(thresholds, dtype=own.dtype)
        agreement = float(((own >= least) == (answered >= least)).all())
    largest = float((own.double() - exported.double()).abs().max()) if bool(exported.isfinite().all()) else math.inf
    counted = torch.ones((), dtype=torch.bool) if label is None or not label.ndim else label != IGNORED
    if label is None or not bool(counted.any()):
        return Difference(largest, agreement, None)
    first, second = (float((found == label)[counted].double().mean()) for found in (own_classes, other_classes))
    return Difference(largest, agreement, (first, second))


def compare_objects(own: Tensor, exported: Tensor) -> Difference:
    """Return how two tables of the objects of an image differ.

    An object counts as the same if the other table has one of its class whose box overlaps with it by 0.9. `same` is
    the share of such objects among those of both tables; `largest` compares their scores.

    Args:
        own: (N, 6 or more) objects with the columns left, top, right, bottom, score and class.
        exported: Objects that the exported model finds, in the same columns; NaN counts as no object.
    """
    first, second = (table[table[:, 4] >= SHOWN] for table in (own, exported.nan_to_num(-1.0)))
    if not len(first) or not len(second):
        return Difference(0.0, float(len(first) == len(second)), None)
    overlaps = box_iou(first[:, :4], second[:, :4]) * (first[:, None, 5] == second[None, :, 5])
    nearest = overlaps.max(1)
    is_matched = nearest.values >= OVERLAP
    agreement = (int(is_matched.sum()) + int((overlaps.amax(0) >= OVERLAP).sum())) / (len(first) + len(second))
    differences = (first[:, 4] - second[nearest.indices, 4]).abs()[is_matched]
    return Difference(float(differences.max()) if len(differences) else 0.0, agreement, None)


def compare_all(
    subject: Any,
    network: nn.Module,
    pixels: bool,
    images: Sequence[Image.Image],
    labels: Sequence[Tensor] | None,
    progress: Callable[[int, int], None] = lambda n_done, total: None,
    student: tuple[Any, Sequence[Image.Image]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Run a model and its export on each image in turn, and return how their predictions differ.

    Args:
        subject: The original, such as a `Classifier`.
        network: Exported model.
        pixels: Whether the export has its preprocessing inside.
        images: Upright images.
        labels: Label of each image, if they are known.
        progress: Called with (images done, images in all).
        student: The smaller model that was exported in the original's place, and the same images as it reads them.
        clock: Function that gives the time in seconds; for one thread, CPU time is right even on a busy machine.
    """
    asked_subject, shown_images = student or (subject, images)
    differences: list[Difference] = []
    times: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        for number in range(len(images) + 1):  # the first time is the warm-up
            answers: list[Tensor] = []
            for own_subject, model, as_pixels, pictures, milliseconds in (
                (subject, subject.network, False, images, times[0]),
                (asked_subject, network, pixels, shown_images, times[1]),
            ):
                prepared = own_subject.prepare(pictures[max(number - 1, 0)], as_pixels)
                start = clock()
                answers.append(own_subject.ask(model, prepared, as_pixels))
                milliseconds.append(1000 * (clock() - start))
            if number:
                label = None if labels is None else labels[number - 1]
                differences.append(subject.compare(answers[0], answers[1], label))
                progress(number, len(images))
    rights = [item.right for item in differences if item.right is not None]
    return Comparison(
        len(images),
        max(item.largest for item in differences),
        statistics.fmean(item.same for item in differences),
        (statistics.median(times[0][1:]), statistics.median(times[1][1:])),
        (statistics.fmean(r[0] for r in rights), statistics.fmean(r[1] for r in rights)) if rights else None,
    )
