"""Accuracy on ReaL labels, with one or more classes per image ("Are we done with ImageNet?", Beyer et al. 2020).

The published JSON file contains a list of correct class numbers for each of ImageNet's 50,000 validation images, in the
order of the image numbers. Images with an empty list are not scored.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paucal.evaluation.predictions import Predictions
from paucal.metrics.intervals import Score, wilson
from paucal.reading import parse_json, read_bytes
from paucal.types import UserError
from paucal.wording import counted

MAX_BYTES = 64 << 20  # largest size of a label file that is read
_NUMBERED = re.compile(r"ILSVRC2012_val_(\d{8})(?:\.|_|$)")

RealLabels = Sequence[Sequence[int]]  # numbers of the correct classes of each image


@dataclass(frozen=True)
class RealAccuracy:
    """The fraction of predictions that are among the correct classes of their image."""

    top1: Score
    images: int  # number of scored images
    skipped: int  # number of images without a correct class, which are not scored


def read_real_labels(path: str | Path, classes: int) -> list[list[int]]:
    """Read the correct classes of each image from a JSON list of lists of class numbers below `classes`."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"--real-labels: there is no file {str(path)!r}; check the path.")
    try:
        content = parse_json(read_bytes(path, MAX_BYTES))
    except ValueError as problem:
        raise UserError(f"--real-labels: {str(path)!r} cannot be read ({problem}); give the published file.") from None
    if not isinstance(content, list) or not all(isinstance(entry, list) for entry in content):
        raise UserError(
            f"--real-labels: {str(path)!r} is not a list of lists of class numbers; give the published file."
        )
    for index, entry in enumerate(content):
        for number in entry:
            if type(number) is not int or not 0 <= number < classes:
                raise UserError(
                    f"--real-labels: {str(path)!r} contains class {number!r} for image {index}; expected a number from "
                    f"0 to {classes - 1}, as the model has {classes} classes."
                )
    return content


def match_labels(labels: RealLabels, keys: Sequence[str]) -> list[Sequence[int]]:
    """Return the correct classes of the images with these keys.

    ImageNet's validation images are matched by the number in their file names. Other images are sorted by file name and
    matched with the labels in this order. There must then be as many images as label lists.
    """
    number_matches = [_NUMBERED.search(key) for key in keys]
    if keys and all(number_matches):
        numbers = [int(match[1]) - 1 for match in number_matches if match]
        if min(numbers) < 0 or max(numbers) >= len(labels):
            raise UserError(
                f"--real-labels: the file has labels for {counted(len(labels), 'image')}, but not for image number "
                f"{max(numbers) + 1}: give the label file of these images."
            )
        return [labels[number] for number in numbers]
    if len(labels) != len(keys):
        raise UserError(
            f"--real-labels: the file has labels for {counted(len(labels), 'image')}, but {len(keys)} are evaluated: "
            "give one list of classes per image, in the order of the file names."
        )
    order = sorted(range(len(keys)), key=lambda index: (keys[index].rpartition("/")[2], keys[index]))
    labels_by_index = dict(zip(order, labels, strict=True))
    return [labels_by_index[index] for index in range(len(keys))]


def real_accuracy(predictions: Predictions, labels: RealLabels) -> RealAccuracy:
    """Score predictions against the correct classes of each image."""
    pairs = zip(predictions.predicted.tolist(), labels, strict=True)
    hits = [predicted in correct_classes for predicted, correct_classes in pairs if correct_classes]
    if not hits:
        raise UserError("--real-labels: the file has no label for any of the images; give their label file.")
    return RealAccuracy(wilson(sum(hits), len(hits)), len(hits), len(labels) - len(hits))
