"""COCO's matching of detections with objects, kept per image, so that images can be drawn again and again.

The numbers that are reported are those of torchmetrics; what is here gives their intervals and curves, and agrees with
them on the whole set. An image drawn twice counts twice, which needs no new matching.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paucal.metrics.measures import Weights, precision_at
from paucal.tasks.detection.annotations import Boxes
from paucal.tasks.detection.instance_masks.run_lengths import RunLengths, mask_overlaps
from paucal.tasks.detection.judging import OVERLAPS, RECALLS, Found

MOST = 100  # detections of an image and class that count


@dataclass(frozen=True)
class ClassMatches:
    """All detections of one class, the surest first, and whether each is a hit.

    Attributes:
        images: (D,) int64, the image of each.
        scores: (D,) float32.
        hits: (T, D) bool, at each of ten overlaps.
        ignored: (T, D) bool: it lies on a crowd, and counts neither way.
        objects: (I,) int64, number of objects of the class in each image.
    """

    images: NDArray[np.int64]
    scores: NDArray[np.float32]
    hits: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    objects: NDArray[np.int64]

    def precisions(self, weights: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return (T, 101) precisions at rising recall, where each image counts `weights` times; None without objects.

        As COCO does, each precision is the best at this recall or a higher one, and 0 where none is reached.
        """
        total = float(weights @ self.objects)
        if total <= 0:
            return None
        of_detection = weights[self.images]
        hits = np.cumsum(self.hits * of_detection, axis=1)
        counted = np.cumsum(~self.ignored * of_detection, axis=1)
        return precision_at(RECALLS, hits / np.maximum(counted, 1e-12), hits / total)


def match(found: Sequence[Found], truth: Sequence[Boxes], n_classes: int, masks: bool = False) -> list[ClassMatches]:
    """Match the detections of each class with its objects, as COCO's program does.

    The surest detection chooses first, the object that it overlaps most with among those that are left; what overlaps
    with a crowd only is ignored.

    Args:
        found: of each image.
        truth: of the same images.
        n_classes: K.
        masks: whether overlaps of masks count, and not those of boxes.
    """
    return [_match_class(found, truth, label, masks) for label in range(n_classes)]


class MeanPrecision:
    """COCO's average precision: the mean over classes that have an object, and over overlaps.

    Args:
        matches: per class.
        overlaps: which of the ten; `slice(0, 1)` for AP50.
    """

    def __init__(self, matches: Sequence[ClassMatches], overlaps: slice = slice(None)) -> None:
        self._matches, self._overlaps = matches, overlaps

    def __call__(self, weights: Weights) -> NDArray[np.float64]:
        """Return (D,) scores for (D, I) weights; 0 for a draw without objects."""
        return np.asarray([self._of_draw(row) for row in weights])

    def _of_draw(self, weights: NDArray[np.float64]) -> float:
        curves = [curve for one in self._matches if (curve := one.precisions(weights)) is not None]
        return float(np.mean([curve[self._overlaps].mean() for curve in curves])) if curves else 0.0


def _match_class(found: Sequence[Found], truth: Sequence[Boxes], label: int, masks: bool) -> ClassMatches:
    images, scores, hits, ignored = [], [], [], []
    objects = np.zeros(len(truth), dtype=np.int64)
    for index, (one, known) in enumerate(zip(found, truth, strict=True)):
        mine, theirs = np.flatnonzero(one.labels == label)[:MOST], known.labels == label
        objects[index] = int((theirs & ~known.crowd).sum())
        crowd = known.crowd[theirs]
        if masks:
            own, other = picked(one.masks, mine), picked(known.masks, np.flatnonzero(theirs))
            shared = mask_overlaps(own, other, crowd)
        else:
            shared = overlaps_of(one.boxes[mine], known.corners[theirs], crowd)
        hit, off = match_overlaps(shared, crowd)
        images.append(np.full(len(mine), index))
        scores.append(one.scores[mine])
        hits.append(hit)
        ignored.append(off)
    joined = np.concatenate(scores)
    order = np.argsort(-joined, kind="stable")
    return ClassMatches(
        np.concatenate(images).astype(np.int64)[order],
        joined[order],
        np.concatenate(hits, axis=1)[:, order],
        np.concatenate(ignored, axis=1)[:, order],
        objects,
    )


def match_overlaps(
    shared: NDArray[np.float64], crowd: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (T, D) whether each detection of a class in one image is a hit, and whether it is ignored.

    Args:
        shared: (D, G) overlap of each detection, the surest first, with each object.
        crowd: (G,) which of the objects are crowds.
    """
    hits = np.zeros((len(OVERLAPS), len(shared)), dtype=bool)
    ignored = np.zeros_like(hits)
    if not len(crowd):
        return hits, ignored
    free = np.ones((len(OVERLAPS), len(crowd)), dtype=bool)
    least = OVERLAPS[:, None] - 1e-10
    rows = np.arange(len(OVERLAPS))
    for number, row in enumerate(shared):
        possible = np.where(free & ~crowd & (row >= least), row, -1.0)
        best = possible.argmax(1)
        hits[:, number] = possible[rows, best] >= 0
        free[rows[hits[:, number]], best[hits[:, number]]] = False
        ignored[:, number] = ~hits[:, number] & ((row >= least) & crowd).any(1)
    return hits, ignored


def picked(masks: Sequence[RunLengths] | None, places: NDArray[np.int64]) -> list[RunLengths]:
    """Return the masks at some places, none where there are none."""
    return [] if masks is None else [masks[int(place)] for place in places]


def overlaps_of(
    boxes: NDArray[np.float32], objects: NDArray[np.float32], crowd: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return (D, G) intersection over union; over the detection's own area where the object is a crowd."""
    first, second = boxes.astype(np.float64), objects.astype(np.float64)
    corner = np.maximum(first[:, None, :2], second[None, :, :2])
    sides = np.minimum(first[:, None, 2:], second[None, :, 2:]) - corner
    shared = np.prod(np.maximum(sides, 0), axis=2)
    own, other = np.prod(first[:, 2:] - first[:, :2], axis=1), np.prod(second[:, 2:] - second[:, :2], axis=1)
    union = np.where(crowd[None], own[:, None], own[:, None] + other[None] - shared)
    return shared / np.maximum(union, 1e-12)
