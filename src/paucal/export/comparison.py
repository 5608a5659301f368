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

MIN_SCORE = 0.3  # smallest score of detected objects that are compared
MIN_OVERLAP = 0.9  # smallest IoU of two boxes that count as the same object


@dataclass(frozen=True)
class Comparison:
    """Differences between an exported model and the original model in predictions and speed.

    Attributes:
        images: Number of images on which the models were compared.
        largest: Largest difference between the two models' probabilities of a class.
        agreement: Fraction of images (for a classifier), of pixels (for a segmenter) or of objects (for a detector) for
            which the predictions of both models are equal. Multi-label predictions are equal if they are equal for all
            classes.
        milliseconds: Median milliseconds per image of the original and of the exported model, measured alternately.
        accuracy: Fraction of images or pixels that the original and the exported model predict correctly; None if
            there are no labels.
        size: Size of the exported files in bytes.
    """

    images: int
    largest: float
    agreement: float
    milliseconds: tuple[float, float]
    accuracy: tuple[float, float] | None = None
    size: int = 0


class Difference(NamedTuple):
    """Differences between the predictions of the original and of the exported model for one image."""

    largest: float  # largest difference between the two models' probabilities of a class
    agreement: float  # 1 or 0 for a classifier; fraction of pixels or objects with equal predictions for other models
    # Fractions of correct predictions of the original and of the exported model; None if the image has no label.
    accuracy: tuple[float, float] | None


class Classifier:
    """The network of a trained classifier, which predicts as in `paucal predict`."""

    def __init__(self, model: TrainedModel) -> None:
        self.card, self.network = model.card, model.module.eval()
        self._transform = model.card.preprocessing.transform()

    def prepare(self, image: Image.Image, with_preprocessing: bool) -> Tensor:
        """Return an image as a batch of one: preprocessed, or as pixels if the graph includes the preprocessing."""
        return torch.from_numpy(np.array(image))[None] if with_preprocessing else self._transform(image)[0][None]

    def predict(self, network: nn.Module, prepared: Tensor, with_preprocessing: bool) -> Tensor:
        """Return the (K,) probabilities of an image from `prepare`."""
        output = network(prepared)
        return (output if with_preprocessing else self.card.probabilities(output))[0]

    def compare(self, original: Tensor, exported: Tensor, label: Tensor | None) -> Difference:
        """Return the differences between the probabilities of two models for one image."""
        return compare(original, exported, label, self.card.thresholds)


def compare(original: Tensor, exported: Tensor, label: Tensor | None, thresholds: Sequence[float] | None) -> Difference:
    """Return the differences between the probabilities of two models for one image.

    These are (K,) probabilities of the image, or (K, H, W) of its pixels; NaN in `exported` counts as a wrong
    prediction. `label` is a class, or (H, W) classes of the pixels, where ignored pixels are not counted. `thresholds`
    are those of a multi-label model; None if the model predicts one label.
    """
    finite_exported = exported.nan_to_num(-1.0)
    original_classes, exported_classes = original.argmax(0), finite_exported.argmax(0)
    agreement = float((original_classes == exported_classes).double().mean())
    if thresholds is not None:
        minimum = torch.tensor(thresholds, dtype=original.dtype)
        agreement = float(((original >= minimum) == (finite_exported >= minimum)).all())
    is_finite = bool(exported.isfinite().all())
    largest = float((original.double() - exported.double()).abs().max()) if is_finite else math.inf
    is_labelled = torch.ones((), dtype=torch.bool) if label is None or not label.ndim else label != IGNORED
    if label is None or not bool(is_labelled.any()):
        return Difference(largest, agreement, None)
    first, second = (
        float((classes == label)[is_labelled].double().mean()) for classes in (original_classes, exported_classes)
    )
    return Difference(largest, agreement, (first, second))


def compare_objects(original: Tensor, exported: Tensor) -> Difference:
    """Return the differences between the objects that two models detect in one image.

    Two objects count as the same if they have the same class and the IoU of their boxes is at least 0.9. `agreement` is
    the fraction of such objects among all objects of both models. `largest` is the largest difference between the two
    scores of such an object. The columns of the (N, 6 or more) objects are left, top, right, bottom, score and class;
    rows of `exported` whose score is NaN are ignored.
    """
    first, second = (table[table[:, 4] >= MIN_SCORE] for table in (original, exported.nan_to_num(-1.0)))
    if not len(first) or not len(second):
        return Difference(0.0, float(len(first) == len(second)), None)
    overlaps = box_iou(first[:, :4], second[:, :4]) * (first[:, None, 5] == second[None, :, 5])
    nearest = overlaps.max(1)
    is_matched = nearest.values >= MIN_OVERLAP
    agreement = (int(is_matched.sum()) + int((overlaps.amax(0) >= MIN_OVERLAP).sum())) / (len(first) + len(second))
    differences = (first[:, 4] - second[nearest.indices, 4]).abs()[is_matched]
    return Difference(float(differences.max()) if len(differences) else 0.0, agreement, None)


def compare_all(
    original_model: Any,
    network: nn.Module,
    with_preprocessing: bool,
    images: Sequence[Image.Image],
    labels: Sequence[Tensor] | None,
    progress: Callable[[int, int], None] = lambda n_done, total: None,
    student: tuple[Any, Sequence[Image.Image]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Run a model, such as a `Classifier`, and the exported model alternately on each image, and compare them.

    `with_preprocessing` says whether the exported model includes the preprocessing. `student` is a smaller model that
    was exported instead of the original, with its input images. `clock` returns the time in seconds; for one thread,
    CPU time is accurate even on a busy machine.
    """
    exported_subject, exported_images = student or (original_model, images)
    differences: list[Difference] = []
    times: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        for iteration in range(len(images) + 1):  # iteration 0 is the warm-up, with the first image
            predictions: list[Tensor] = []
            for predicting_subject, model, graph_preprocesses, inputs, milliseconds in (
                (original_model, original_model.network, False, images, times[0]),
                (exported_subject, network, with_preprocessing, exported_images, times[1]),
            ):
                prepared = predicting_subject.prepare(inputs[max(iteration - 1, 0)], graph_preprocesses)
                start = clock()
                predictions.append(predicting_subject.predict(model, prepared, graph_preprocesses))
                milliseconds.append(1000 * (clock() - start))
            if iteration > 0:
                label = None if labels is None else labels[iteration - 1]
                differences.append(original_model.compare(predictions[0], predictions[1], label))
                progress(iteration, len(images))
    accuracies = [item.accuracy for item in differences if item.accuracy is not None]
    return Comparison(
        len(images),
        max(item.largest for item in differences),
        statistics.fmean(item.agreement for item in differences),
        (statistics.median(times[0][1:]), statistics.median(times[1][1:])),
        (statistics.fmean(a[0] for a in accuracies), statistics.fmean(a[1] for a in accuracies))
        if accuracies
        else None,
    )
