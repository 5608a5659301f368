"""All that is said of a detector on some images: scores with intervals, by class, and as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paucal.metrics.intervals import Bootstrap, Score, percentile
from paucal.runs import csv_text
from paucal.tasks.detection.annotations import Boxes
from paucal.tasks.detection.judging import MASKS, Found, coco_scores
from paucal.tasks.detection.matching import ClassMatches, MeanPrecision, match

DRAWS = 300  # resampled sets of images
ByClass = Mapping[str, float | None]


@dataclass(frozen=True)
class Measured:
    """How a detector does on some images.

    Attributes:
        images: how many were judged.
        scores: "ap" and "ap50" with their 95 % intervals; "mask_ap" and "mask_ap50" too where masks were judged.
        metrics: all scores as plain numbers.
        per_class: average precision by the name of the class; None for classes without an object.
        matches: of each class, "" for those of boxes and "mask_" for those of masks.
        mask_per_class: the same as `per_class` of masks; empty where none were judged.
    """

    images: int
    scores: Mapping[str, Score]
    metrics: Mapping[str, float]
    per_class: ByClass
    matches: Mapping[str, list[ClassMatches]]
    mask_per_class: ByClass = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Return plain values for a file."""
        told = {name: vars(score) for name, score in self.scores.items()}
        masks = {"mask_per_class": self.mask_per_class} if self.mask_per_class else {}
        found = {"scores": dict(self.metrics), "intervals": told, "per_class": self.per_class}
        return {"images": self.images, **found, **masks}

    def table(self) -> str:
        """Return objects, AP and AP50 of each class as CSV, those of masks beside them."""
        averages = {"": self.per_class, MASKS: self.mask_per_class}
        rows: list[list[object]] = [
            ["class", "objects", *(f"{kind}{name}" for kind in self.matches for name in ("ap", "ap50"))]
        ]
        for label, name in enumerate(self.per_class):
            cells = [cell for kind, of in self.matches.items() for cell in _cells(averages[kind][name], of[label])]
            rows.append([name, int(self.matches[""][label].objects.sum()), *cells])
        return csv_text(*rows)


def measured(found: Sequence[Found], truth: Sequence[Boxes], classes: Sequence[str]) -> Measured:
    """Judge what was found in some images: boxes, and masks where all answers and objects have one.

    Args:
        found: of each image.
        truth: of the same images.
        classes: names of the detector's classes.

    Raises:
        UserError: faster-coco-eval is not installed.
    """
    values = coco_scores(found, truth, len(classes))
    kinds = {"": False, MASKS: True} if f"{MASKS}ap" in values else {"": False}
    matches = {kind: match(found, truth, len(classes), masks) for kind, masks in kinds.items()}
    measures = {
        f"{kind}{name}": MeanPrecision(one, overlaps)
        for kind, one in matches.items()
        for name, overlaps in (("ap", slice(None)), ("ap50", slice(0, 1)))
    }
    draws = zip(measures, Bootstrap(draws=DRAWS).scores([*measures.values()], len(truth)), strict=True)
    scores = {name: percentile(values[name], column) for name, column in draws}
    by_class = [dict(zip(classes, values.pop(f"{kind}per_class"), strict=True)) for kind in kinds]
    return Measured(len(truth), scores, values, by_class[0], matches, *by_class[1:])


def told(score: Score) -> str:
    """Return a score in words."""
    if score.low is None or score.high is None:
        return f"{score.value:.3f}"
    return f"{score.value:.3f} (95 % interval {score.low:.3f} to {score.high:.3f})"


def _cells(average: float | None, matches: ClassMatches) -> tuple[str, str]:
    """Return the AP and the AP50 of a class as text."""
    curve = matches.precisions(np.ones(len(matches.objects)))
    half = "" if curve is None else f"{curve[0].mean():.4f}"
    return "" if average is None else f"{average:.4f}", half
