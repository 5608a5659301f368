"""What tells the class of an image beside what it shows: the format of its file, its size, its kind of pixels."""

from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from paucal.data.checking.findings import Checked, Finding
from paucal.data.checking.survey import Survey
from paucal.data.sources.folder import IMAGE_SUFFIXES

FEWEST = 5  # images of a class, below which it may be alike by chance
SURE = 0.95  # share of the images of a class, and of the others, that are told rightly
_SHOWN = 3
_SAME = {"jpeg": "jpg", "jfif": "jpg", "jpe": "jpg", "tiff": "tif"}


def giveaway_findings(checked: Checked, survey: Survey) -> list[Finding]:
    """Return a finding where the format, the size or the mode of the files tells classes apart.

    Args:
        checked: The set and its parts; images without a label, or with several, are not looked at.
        survey: What was seen of its images.
    """
    images = checked.images
    rows = survey.readable[images.labels[survey.readable] >= 0]
    kinds = {
        "format": [format_of(images.keys[int(row)]) for row in rows],
        "size": [f"{width} x {height}" for height, width in survey.sizes[rows].tolist()],
        "kind of pixels": [survey.modes[int(row)] for row in rows],
    }
    labels, told = images.labels[rows], []
    for kind, values in kinds.items():
        shown = []
        for label in classes_told(values, labels):
            usual = Counter(value for value, one in zip(values, labels, strict=True) if one == label).most_common(1)
            shown.append(f"{images.classes[label]} {usual[0][0]}")
        if shown:
            more = ", ..." if len(shown) > _SHOWN else ""
            told.append(f"the {kind} of the files ({', '.join(shown[:_SHOWN])}{more})")
    if not told:
        return []
    text = f"classes can be told by {' and by '.join(told)}: a model may learn that in place of what the images show"
    advice = "save the images of all classes alike, or see that new images differ in the same way"
    return [Finding("giveaway", "note", text, advice)]


def format_of(key: str) -> str:
    """Return the format that the ending of a name says; "" where it says none.

    Example:
        >>> format_of("cat/1.JPEG"), format_of("train.parquet#7")
        ('jpg', '')
    """
    suffix = PurePosixPath(key).suffix.lower()
    return _SAME.get(suffix[1:], suffix[1:]) if suffix in IMAGE_SUFFIXES else ""


def classes_told(values: Sequence[Hashable], labels: NDArray[np.int64]) -> list[int]:
    """Return the classes that a value tells from all others, ascending.

    Each image is given the most frequent class of the other images with its value, and none where it has no like: sizes
    that are all different tell nothing. A class is told where 95 % of its images, of those given its name and of the
    images of other classes are told rightly.

    Args:
        values: N values, such as formats.
        labels: (N,) numbers of classes.
    """
    if not len(labels):
        return []
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    counts = np.zeros((len(numbers), int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (np.asarray([numbers[value] for value in values], dtype=np.int64), labels), 1)
    given = np.zeros((counts.shape[1], counts.shape[1]), dtype=np.int64)  # of each class, which it is told to be
    for value, label in zip(*np.nonzero(counts), strict=True):
        others = counts[value].copy()
        others[label] -= 1
        if others.any():
            given[label, int(others.argmax())] += counts[value, label]
    totals, right, named = counts.sum(0), np.diagonal(given), given.sum(0)
    rest = totals.sum() - totals
    sure = (totals >= FEWEST) & (rest > 0) & (right >= SURE * totals) & (right >= SURE * named)
    sure &= rest - (named - right) >= SURE * rest
    return np.flatnonzero(sure & (right > 0)).tolist()
