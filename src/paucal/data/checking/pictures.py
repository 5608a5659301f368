"""Findings about images: unreadable and blank images, and file properties that reveal the class."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from paucal.data.checking.copies import exact_copy_findings, near_copy_findings
from paucal.data.checking.findings import CheckedSet, Finding, as_groups, refusal_finding
from paucal.data.checking.related import MIN_CONTRAST, SimilarPair, group_by_digest
from paucal.data.checking.survey import Survey
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.unreadable import drop_unreadable
from paucal.types import UserError
from paucal.wording import counted, join_first_few

UNREADABLE = "unreadable"
MIN_COSINE = 0.9  # smallest cosine similarity of the frozen features of two near duplicates
_DARK, _BRIGHT = 0.03, 0.97  # an image with a mean brightness below the first or above the second value is blank
_DEEP_MODES = ("I", "F")  # prefixes of Pillow's modes with more than 8 bits per channel
MIN_IMAGES = 5  # classes with fewer images are not checked, since few files may share a property by chance
REVEALED_FRACTION = 0.95  # file properties reveal a class if its recall, precision and specificity are at least this
_MAX_EXAMPLES = 3  # number of classes that are named as examples
_SUFFIX_SYNONYMS = {"jpeg": "jpg", "jfif": "jpg", "jpe": "jpg", "tiff": "tif"}


def image_findings(checked: CheckedSet, survey: Survey, pairs: Sequence[SimilarPair]) -> list[Finding]:
    """Return the findings about images; `pairs` are similar images with different bytes."""
    exact_copies = group_by_digest(survey.digests)
    confirmed_pairs = [pair for pair in pairs if pair.cosine is None or pair.cosine >= MIN_COSINE]
    findings: list[Finding] = []
    try:
        drop_unreadable(checked.images, survey.unreadable, "refuse")
    except UserError as problem:
        findings.append(replace(refusal_finding(UNREADABLE, problem), groups=as_groups(sorted(survey.unreadable))))
    findings += exact_copy_findings(checked, exact_copies)
    if confirmed_pairs:
        findings += near_copy_findings(checked, confirmed_pairs, exact_copies)
    is_extreme = (survey.brightness < _DARK) | (survey.brightness > _BRIGHT)
    # NaN, for unreadable images, compares as False.
    blank = np.flatnonzero((survey.contrast < MIN_CONTRAST) | is_extreme)
    if len(blank):
        text = f"{counted(len(blank), 'image is', 'images are')} blank (one colour, nearly black or nearly white)"
        advice = "look at the images on the page (--output), and remove images without content"
        findings.append(Finding("blank", "warning", text, advice, as_groups(blank)))
    counts = Counter(mode for mode in survey.modes if mode)
    if len(counts) > 1:
        usual = counts.most_common(1)[0][0]
        unusual = as_groups(i for i, mode in enumerate(survey.modes) if mode and mode != usual)
        mode_counts = ", ".join(f"{mode}: {count}" for mode, count in counts.most_common())
        text = f"the files have pixels in {len(counts)} modes ({mode_counts}); all are read as RGB"
        findings.append(Finding("modes", "note", text, "make sure that no mode occurs in one class only", unusual))
    if n_deep := sum(count for mode, count in counts.items() if mode.startswith(_DEEP_MODES)):
        text = f"{counted(n_deep, 'image has', 'images have')} more than 8 bits per channel"
        advice = "see pixels.md in the documentation for how their value range is chosen"
        findings.append(Finding("deep", "note", text, advice))
    return [*findings, *giveaway_findings(checked, survey)]


def giveaway_findings(checked: CheckedSet, survey: Survey) -> list[Finding]:
    """Return a list with a finding if properties of the files reveal the class of images with one label."""
    images = checked.images
    rows = survey.readable_positions[images.labels[survey.readable_positions] >= 0]
    properties = {
        "format": [format_of(images.keys[int(row)]) for row in rows],
        "size": [f"{width} x {height}" for height, width in survey.sizes[rows].tolist()],
        "pixel mode": [survey.modes[int(row)] for row in rows],
    }
    labels, clues = images.labels[rows], []
    for property_name, values in properties.items():
        examples = []
        for label in classes_given_away(values, labels):
            (usual, _), *_ = Counter(compress(values, labels == label)).most_common(1)
            examples.append(f"{images.classes[label]} {usual}")
        if examples:
            clues.append(f"the {property_name} of the files ({join_first_few(examples, _MAX_EXAMPLES)})")
    if not clues:
        return []
    effect = "a model may learn this instead of the content of the images"
    text = f"classes can be predicted from {' and from '.join(clues)}: {effect}"
    advice = "save the images of all classes in the same way, or make sure that new images differ in the same way"
    return [Finding("giveaway", "note", text, advice)]


def format_of(key: str) -> str:
    """Return the image format that a key's suffix stands for; "" if the suffix is not an image suffix."""
    suffix = PurePosixPath(key).suffix.lower()
    return _SUFFIX_SYNONYMS.get(suffix[1:], suffix[1:]) if suffix in IMAGE_SUFFIXES else ""


def classes_given_away(values: Sequence[Hashable], labels: NDArray[np.integer]) -> list[int]:
    """Return the classes (ascending) that can be predicted from one value per image, such as the file format.

    The prediction for an image is the most frequent class among the other images with the same value. An image with a
    unique value gets no prediction. A class is returned if its recall, its precision and its specificity (the fraction
    of images of other classes that are not predicted as the class) are each at least 95 %.
    """
    if not len(labels):
        return []
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    counts = np.zeros((len(numbers), int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (np.asarray([numbers[value] for value in values], dtype=np.int64), labels), 1)
    predictions = np.zeros((counts.shape[1], counts.shape[1]), dtype=np.int64)  # true class, predicted class
    for value, label in zip(*np.nonzero(counts), strict=True):
        other_counts = counts[value].copy()
        other_counts[label] -= 1
        if other_counts.any():
            predictions[label, int(other_counts.argmax())] += counts[value, label]
    totals, n_correct, n_predicted = counts.sum(0), np.diagonal(predictions), predictions.sum(0)
    other_totals = totals.sum() - totals
    is_revealed = (totals >= MIN_IMAGES) & (other_totals > 0) & (n_correct >= REVEALED_FRACTION * totals)
    is_revealed &= (n_correct > 0) & (n_correct >= REVEALED_FRACTION * n_predicted)
    is_revealed &= other_totals - (n_predicted - n_correct) >= REVEALED_FRACTION * other_totals
    return np.flatnonzero(is_revealed).tolist()
