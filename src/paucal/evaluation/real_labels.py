"""Accuracy against several right answers per image, as in "Are we done with ImageNet?" (Beyer et al. 2020, ReaL).

The published file is a JSON list with a list of class numbers for each of ImageNet's 50,000 validation images, in the
order of the image numbers. Images whose list is empty do not count.
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

MAX_BYTES = 64 << 20
_NUMBERED = re.compile(r"ILSVRC2012_val_(\d{8})(?:\.|_|$)")

Answers = Sequence[Sequence[int]]


@dataclass(frozen=True)
class RealAccuracy:
    """How often a classifier's prediction is among the right classes of an image."""

    top1: Score
    images: int
    skipped: int


def read_real_labels(path: str | Path, classes: int) -> list[list[int]]:
    """Read the right answers of every image from a JSON list of lists of class numbers below `classes`."""
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
                    f"--real-labels: {str(path)!r} names class {number!r} for image {index}; expected numbers from "
                    f"0 to {classes - 1}, which the model's classes have."
                )
    return content


def answers_of(labels: Answers, keys: Sequence[str]) -> list[Sequence[int]]:
    """Return the right answers of images by their keys.

    ImageNet's validation images are found by the number in their names, in any folder. Other images are found by their
    place in the order of file names; then there must be one answer list per image.
    """
    number_matches = [_NUMBERED.search(key) for key in keys]
    if keys and all(number_matches):
        numbers = [int(match[1]) - 1 for match in number_matches if match]
        if min(numbers) < 0 or max(numbers) >= len(labels):
            raise UserError(
                f"--real-labels: the file has answers for {counted(len(labels), 'image')}, none for number "
                f"{max(numbers) + 1}: it belongs to other images."
            )
        return [labels[number] for number in numbers]
    if len(labels) != len(keys):
        raise UserError(
            f"--real-labels: the file has answers for {counted(len(labels), 'image')}, and {len(keys)} are evaluated: "
            "give one list for each, in the order of their file names."
        )
    order = sorted(range(len(keys)), key=lambda index: (keys[index].rpartition("/")[2], keys[index]))
    answers: list[Sequence[int]] = [()] * len(keys)
    for rank, index in enumerate(order):
        answers[index] = labels[rank]
    return answers


def real_accuracy(predictions: Predictions, answers: Answers) -> RealAccuracy:
    """Score predictions against several right answers per image.

    Example:
        >>> import torch
        >>> predictions = Predictions(torch.arange(3), torch.eye(3), torch.zeros(3).long())
        >>> score = real_accuracy(predictions, [[0, 2], [], [1]])
        >>> score.top1.value, score.images, score.skipped
        (0.5, 2, 1)
    """
    pairs = zip(predictions.predicted.tolist(), answers, strict=True)
    hits = [guess in right for guess, right in pairs if right]
    if not hits:
        raise UserError("--real-labels: no image has a right answer there; give the file of these images.")
    return RealAccuracy(wilson(sum(hits), len(hits)), len(hits), len(answers) - len(hits))
