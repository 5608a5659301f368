"""COCO's scores of detections, with confidence intervals and precision-recall curves.

torchmetrics computes the scores. The intervals and curves come from matches of detections with objects. The matches are
computed here once per image, so that bootstrap resampling of the images needs no new matching. Without resampling,
these matches give the same scores as torchmetrics.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paucal.metrics.intervals import Bootstrap, Score, percentile
from paucal.metrics.measures import Measure, interpolated_precision
from paucal.tasks.detection.detections import Detections
from paucal.tasks.detection.images import Boxes
from paucal.tasks.detection.masks import BACKEND, INSTALL_COMMAND, mask_overlaps, stack_masks
from paucal.types import UserError
from paucal.writing import csv_text

BOOTSTRAP_DRAWS = 300  # number of bootstrap samples of the images for the confidence intervals
MASK_PREFIX = "mask_"  # prefix of the names of mask scores
MAX_DETECTIONS = 100  # maximum number of detections per image and class that are evaluated
# COCO's thresholds in double precision, because torchmetrics rounds its default thresholds, and an IoU is often
# exactly equal to a threshold
IOU_THRESHOLDS, RECALL_LEVELS = np.linspace(0.5, 0.95, 10), np.linspace(0, 1, 101)
# Names of scores in torchmetrics, mapped to their names in paucal
SCORES = {"map": "ap", "map_50": "ap50", "map_75": "ap75", "mar_100": "recall"}
BY_SIZE = {"map_small": "ap_small", "map_medium": "ap_medium", "map_large": "ap_large"}
ByClass = Mapping[str, float | None]


@dataclass(frozen=True)
class ClassMatches:
    """The D detections of one class in I images, in descending order of their scores, and the result of matching."""

    images: NDArray[np.int64]  # (D,), position of each detection's image
    scores: NDArray[np.float32]  # (D,), class probabilities
    hits: NDArray[np.bool_]  # (T, D), whether a detection is a true positive at each of T IoU thresholds
    ignored: NDArray[np.bool_]  # (T, D), whether a detection is not counted: it matches a crowd but no object
    objects: NDArray[np.int64]  # (I,), number of objects of the class in each image

    def precisions(self, weights: NDArray[np.float64], thresholds: slice = slice(None)) -> NDArray[np.float64] | None:
        """Return (T, 101) precisions at recall levels from 0 to 1, for (I,) image weights; None if there is no object.

        As in COCO, the precision at a recall level is the highest precision at this or any higher recall, and 0 if no
        detection reaches this recall.
        """
        total = float(weights @ self.objects)
        if total <= 0:
            return None
        detection_weights = weights[self.images]
        hits = np.cumsum(self.hits[thresholds] * detection_weights, axis=1)
        counted = np.cumsum(~self.ignored[thresholds] * detection_weights, axis=1)
        return interpolated_precision(RECALL_LEVELS, hits / np.maximum(counted, 1e-12), hits / total)


def average_precision(matches: Sequence[ClassMatches], thresholds: slice = slice(None)) -> Measure:
    """Return COCO's average precision (AP) as a function of the (B, I) image weights of B bootstrap draws.

    AP is the mean over IoU thresholds (`slice(0, 1)` for AP50) and over the classes that have objects; 0 if none has.
    """

    def score_draw(weights: NDArray[np.float64]) -> float:
        curves = [class_matches.precisions(weights, thresholds) for class_matches in matches]
        means = [curve.mean() for curve in curves if curve is not None]
        return float(np.mean(means)) if means else 0.0

    return lambda weights: np.asarray([score_draw(row) for row in weights])


@dataclass(frozen=True)
class DetectionScores:
    """Scores of a detector on some images."""

    images: int  # number of images
    scores: Mapping[str, Score]  # "ap" and "ap50" with 95 % intervals; also "mask_ap" and "mask_ap50" with masks
    metrics: Mapping[str, float]  # all scores as plain numbers, by name
    per_class: ByClass  # average precision of boxes by class name; None for classes without an object
    # Matches of each class, by the prefix of the score names: "" for boxes, "mask_" for masks.
    matches: Mapping[str, list[ClassMatches]]
    # Average precision of masks by class name; empty if no masks were evaluated.
    mask_per_class: ByClass = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Return the content of `metrics.json`."""
        masks = {"mask_per_class": self.mask_per_class} if self.mask_per_class else {}
        intervals = {name: vars(score) for name, score in self.scores.items()}
        scores = {"scores": dict(self.metrics), "intervals": intervals, "per_class": self.per_class}
        return {"images": self.images, **scores, **masks}

    def per_class_csv(self) -> str:
        """Return a CSV of the number of objects, AP and AP50 of each class, and of mask AP and AP50 if available."""
        averages = {"": self.per_class, MASK_PREFIX: self.mask_per_class}
        headings = [f"{kind}{name}" for kind in self.matches for name in ("ap", "ap50")]
        rows: list[list[object]] = [["class", "objects", *headings]]
        for label, name in enumerate(self.per_class):
            row: list[object] = [name, int(self.matches[""][label].objects.sum())]
            for kind, matches in self.matches.items():
                average = averages[kind][name]
                curve = matches[label].precisions(np.ones(len(matches[label].objects)))
                row.append("" if average is None else f"{average:.4f}")
                row.append("" if curve is None else f"{curve[0].mean():.4f}")
            rows.append(row)
        return csv_text(*rows)


def require_coco_eval() -> None:
    """Raise a UserError if faster-coco-eval, which computes COCO's scores, is not installed."""
    if find_spec(BACKEND) is None:
        raise UserError(
            f"the evaluation of detectors needs faster-coco-eval, which is not installed: {INSTALL_COMMAND}."
        )


def evaluate_detections(
    detections: Sequence[Detections], truth: Sequence[Boxes], classes: Sequence[str]
) -> DetectionScores:
    """Return box scores with intervals, and also mask scores if all detections and objects have masks."""
    values = coco_scores(detections, truth, len(classes))
    kinds = {"": False, MASK_PREFIX: True} if f"{MASK_PREFIX}ap" in values else {"": False}
    matches = {kind: match_detections(detections, truth, len(classes), masks) for kind, masks in kinds.items()}
    measures = {
        f"{kind}{name}": average_precision(kind_matches, thresholds)
        for kind, kind_matches in matches.items()
        for name, thresholds in (("ap", slice(None)), ("ap50", slice(0, 1)))
    }
    draws = zip(measures, Bootstrap(draws=BOOTSTRAP_DRAWS).scores([*measures.values()], len(truth)), strict=True)
    scores = {name: percentile(values[name], column) for name, column in draws}
    by_class = [dict(zip(classes, values.pop(f"{kind}per_class"), strict=True)) for kind in kinds]
    return DetectionScores(len(truth), scores, values, by_class[0], matches, *by_class[1:])


def format_score(score: Score) -> str:
    """Return a score with its interval as text."""
    if score.low is None or score.high is None:
        return f"{score.value:.3f}"
    return f"{score.value:.3f} (95 % interval {score.low:.3f} to {score.high:.3f})"


def coco_scores(detections: Sequence[Detections], truth: Sequence[Boxes], n_classes: int) -> dict[str, Any]:
    """Return COCO's scores, computed by torchmetrics with faster-coco-eval; scores of masks are named "mask_...".

    Besides `SCORES` and "per_class" (K average precisions; None for a class without an object), there is an AP for each
    size in `BY_SIZE` that occurs: below 32 x 32 pixels in the annotated image, above 96 x 96 pixels, and between. As in
    COCO, the size is that of the mask if the mask is known.
    """
    require_coco_eval()
    from torchmetrics.detection import MeanAveragePrecision

    with_masks = all(objects_of_image.masks is not None for objects_of_image in (*detections, *truth))
    kinds = ("bbox", "segm") if with_masks else ("bbox",)
    with warnings.catch_warnings():
        # torchmetrics warns that it ignores detections after the hundredth, but detectors return at most 100.
        warnings.simplefilter("ignore")
        thresholds = {"iou_thresholds": IOU_THRESHOLDS.tolist(), "rec_thresholds": RECALL_LEVELS.tolist()}
        metric = MeanAveragePrecision("xyxy", iou_type=kinds, backend=BACKEND, class_metrics=True, **thresholds)
        for detected, boxes in zip(detections, truth, strict=True):  # one image at a time, since masks are large
            predicted = {name: torch.from_numpy(getattr(detected, name)) for name in ("boxes", "scores", "labels")}
            target = {
                "boxes": torch.from_numpy(boxes.corners),
                "labels": torch.from_numpy(boxes.labels),
                "iscrowd": torch.from_numpy(boxes.crowd.astype(np.int64)),
            }
            if with_masks:
                predicted["masks"] = stack_masks(detected.masks or (), boxes.size)
                target["masks"] = stack_masks(boxes.masks or (), boxes.size)
            metric.update([predicted], [target])
        values = metric.compute()
    scores = _named_scores(values, "bbox_" if with_masks else "", n_classes)
    if with_masks:
        scores |= {MASK_PREFIX + name: value for name, value in _named_scores(values, "segm_", n_classes).items()}
    return scores


def _named_scores(values: Mapping[str, Tensor], prefix: str, n_classes: int) -> dict[str, Any]:
    """Return torchmetrics' scores of boxes or of masks, by their names in paucal."""
    scores = {name: float(values[prefix + key]) for key, name in SCORES.items()}
    scores |= {name: float(values[prefix + key]) for key, name in BY_SIZE.items() if float(values[prefix + key]) >= 0}
    per_class: list[float | None] = [None] * n_classes
    classes, averages = torch.atleast_1d(values["classes"]), torch.atleast_1d(values[f"{prefix}map_per_class"])
    for label, average in zip(classes.tolist(), averages.tolist(), strict=True):
        per_class[int(label)] = average if average >= 0 else None
    return {**{name: max(value, 0.0) for name, value in scores.items()}, "per_class": per_class}


def match_detections(
    detections: Sequence[Detections], truth: Sequence[Boxes], n_classes: int, masks: bool = False
) -> list[ClassMatches]:
    """Match the detections of each class with the objects of that class, as COCO's evaluation does.

    In descending order of the score, each detection is matched with the unmatched object of highest IoU, if that IoU
    reaches the threshold. A detection that matches a crowd but no object is ignored.
    """
    matches = []
    for label in range(n_classes):
        images, scores, hits, ignored = [], [], [], []
        objects = np.zeros(len(truth), dtype=np.int64)
        for index, (predicted, boxes) in enumerate(zip(detections, truth, strict=True)):
            rows, has_label = np.flatnonzero(predicted.labels == label)[:MAX_DETECTIONS], boxes.labels == label
            objects[index] = int((has_label & ~boxes.crowd).sum())
            crowd = boxes.crowd[has_label]
            if masks:
                detected_masks = [predicted.masks[row] for row in rows] if predicted.masks is not None else []
                true_masks = [boxes.masks[row] for row in np.flatnonzero(has_label)] if boxes.masks is not None else []
                overlaps = mask_overlaps(detected_masks, true_masks, crowd)
            else:
                overlaps = box_overlaps(predicted.boxes[rows], boxes.corners[has_label], crowd)
            is_hit, is_ignored = match_overlaps(overlaps, crowd)
            images.append(np.full(len(rows), index))
            scores.append(predicted.scores[rows])
            hits.append(is_hit)
            ignored.append(is_ignored)
        all_scores = np.concatenate(scores)
        order = np.argsort(-all_scores, kind="stable")
        class_matches = ClassMatches(
            np.concatenate(images).astype(np.int64)[order],
            all_scores[order],
            np.concatenate(hits, axis=1)[:, order],
            np.concatenate(ignored, axis=1)[:, order],
            objects,
        )
        matches.append(class_matches)
    return matches


def match_overlaps(
    overlaps: NDArray[np.float64], crowd: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Match the detections with the objects of one class in one image, given their (D, G) IoU and the (G,) crowds.

    Detections are in descending order of their scores. Return two (T, D) bool arrays: whether a detection is a true
    positive, and whether it is ignored.
    """
    hits = np.zeros((len(IOU_THRESHOLDS), len(overlaps)), dtype=bool)
    ignored = np.zeros_like(hits)
    if not len(crowd):
        return hits, ignored
    unmatched = np.ones((len(IOU_THRESHOLDS), len(crowd)), dtype=bool)
    min_overlaps = IOU_THRESHOLDS[:, None] - 1e-10
    rows = np.arange(len(IOU_THRESHOLDS))
    for number, row in enumerate(overlaps):
        candidates = np.where(unmatched & ~crowd & (row >= min_overlaps), row, -1.0)
        best = candidates.argmax(1)
        hits[:, number] = candidates[rows, best] >= 0
        unmatched[rows[hits[:, number]], best[hits[:, number]]] = False
        ignored[:, number] = ~hits[:, number] & ((row >= min_overlaps) & crowd).any(1)
    return hits, ignored


def box_overlaps(
    boxes: NDArray[np.float32], objects: NDArray[np.float32], crowd: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the (D, G) IoU of boxes with objects; for a crowd, the intersection divided by the box's area."""
    first, second = boxes.astype(np.float64), objects.astype(np.float64)
    corner = np.maximum(first[:, None, :2], second[None, :, :2])
    sides = np.minimum(first[:, None, 2:], second[None, :, 2:]) - corner
    intersection = np.prod(np.maximum(sides, 0), axis=2)
    first_areas, second_areas = (np.prod(corners[:, 2:] - corners[:, :2], axis=1) for corners in (first, second))
    union = np.where(crowd[None], first_areas[:, None], first_areas[:, None] + second_areas[None] - intersection)
    return intersection / np.maximum(union, 1e-12)
