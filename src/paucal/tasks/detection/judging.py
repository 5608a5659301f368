"""What a detector finds on a set of images, and COCO's average precision of it."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.evaluation.predictions import evaluation_mode
from paucal.tasks.detection.annotations import Boxes
from paucal.tasks.detection.batch import BoxBatch
from paucal.tasks.detection.instance_masks.head import pasted_masks
from paucal.tasks.detection.instance_masks.run_lengths import BACKEND, EXTRA, RunLengths, stacked, unpacked
from paucal.types import UserError

MASKS = "mask_"  # begins the names of the scores of masks
# COCO's own in double precision; torchmetrics rounds its, and shares of pixels or of objects are often equal to one.
OVERLAPS, RECALLS = np.linspace(0.5, 0.95, 10), np.linspace(0, 1, 101)
SCORES = {"map": "ap", "map_50": "ap50", "map_75": "ap75", "mar_100": "recall"}
BY_SIZE = {"map_small": "ap_small", "map_medium": "ap_medium", "map_large": "ap_large"}


@dataclass(frozen=True)
class Found:
    """The objects that a detector has found in one image, the surest first.

    Attributes:
        boxes: (N, 4) float32, corners in pixels of the image as it was annotated.
        scores: (N,) float32.
        labels: (N,) int64, from 0.
        masks: of the image as it was annotated, as lengths of runs; None where the detector answers none.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    masks: tuple[RunLengths, ...] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def above(self, score: float) -> "Found":
        """Return those of at least a score."""
        kept = self.scores >= score
        masks = None if self.masks is None else tuple(self.masks[int(place)] for place in np.flatnonzero(kept))
        return Found(self.boxes[kept], self.scores[kept], self.labels[kept], masks)

    def mask(self, place: int) -> NDArray[np.bool_]:
        """Return the (H, W) mask of the object at a place.

        Raises:
            UserError: the detector answers no masks.
        """
        if self.masks is None:
            raise UserError("this detector answers boxes only: train one with --masks on.")
        return unpacked(self.masks[place]).astype(bool)


def require_metrics() -> None:
    """Refuse to judge detectors where the program that counts is missing.

    Raises:
        UserError: the extra is not installed.
    """
    if find_spec(BACKEND) is None:
        raise UserError(f"detectors are judged by faster-coco-eval, which is not installed: {EXTRA}.")


@torch.inference_mode()
def detect_all(
    detector: nn.Module,
    batches: Iterable[BoxBatch],
    device: torch.device,
    progress: Callable[[int], None] | None = None,
) -> dict[int, Found]:
    """Return what a detector finds, by the position of each image; its modes are left as they were.

    Args:
        detector: takes images and their sizes.
        batches: of images as a deployed detector sees them.
        device: where the detector is.
        progress: called with the number of images done.
    """
    found: dict[int, Found] = {}
    with evaluation_mode(detector):
        for batch in batches:
            answers = detector(batch.images.to(device), batch.image_sizes())
            for place, answer in enumerate(answers):
                sides, size = batch.sizes[place].tolist(), batch.originals[place].tolist()
                found[int(batch.ids[place])] = found_in(answer, (sides[0], sides[1]), (size[0], size[1]))
            if progress is not None:
                progress(len(found))
    return found


def found_in(answer: Mapping[str, Tensor], sides: tuple[int, int], size: tuple[int, int]) -> Found:
    """Return a detector's answer for one image in the pixels of another size of it, the surest first.

    Args:
        answer: as the detector gives it.
        sides: (height, width) of the image that the detector has seen.
        size: (height, width) that the boxes and masks are wanted for.
    """
    order = answer["scores"].argsort(descending=True).cpu()
    scale = torch.tensor([size[1] / sides[1], size[0] / sides[0]]).repeat(2)
    boxes = (answer["boxes"].float().cpu() * scale)[order].float()
    scores, labels = answer["scores"].float().cpu()[order], answer["labels"].cpu()[order]
    masks = pasted_masks(answer["masks"].float().cpu()[order], boxes, size) if "masks" in answer else None
    return Found(boxes.numpy(), scores.numpy(), labels.numpy(), masks)


def coco_scores(found: Sequence[Found], truth: Sequence[Boxes], n_classes: int) -> dict[str, Any]:
    """Return COCO's scores, as torchmetrics and faster-coco-eval count them.

    Args:
        found: of each image.
        truth: of the same images.
        n_classes: K.

    Returns:
        "ap" (the mean over ten overlaps from 0.5 to 0.95 and all classes with an object), "ap50", "ap75", "recall" (of
        100 detections an image), those by the size of the objects where there are such (in pixels of the annotated
        image, under 32 x 32, under 96 x 96, above; of the object's mask where there are masks, as COCO counts), and
        "per_class", a list of K average precisions, None for classes without an object. Where all answers and objects
        have masks, all of it once more as "mask_ap" and so on, with overlaps of masks.

    Raises:
        UserError: faster-coco-eval is not installed.
    """
    require_metrics()
    from torchmetrics.detection import MeanAveragePrecision

    masked = all(one.masks is not None for one in (*found, *truth))
    kinds = ("bbox", "segm") if masked else ("bbox",)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about more than 100 detections, of which there are none
        places = {"iou_thresholds": OVERLAPS.tolist(), "rec_thresholds": RECALLS.tolist()}
        metric = MeanAveragePrecision("xyxy", iou_type=kinds, backend=BACKEND, class_metrics=True, **places)
        for one, known in zip(found, truth, strict=True):  # one by one: masks of many images would not fit
            metric.update([_tensors_of(one, known.size, masked)], [_truth_of(known, masked)])
        values = metric.compute()
    scores = _named(values, "bbox_" if masked else "", n_classes)
    if masked:
        scores |= {MASKS + name: value for name, value in _named(values, "segm_", n_classes).items()}
    return scores


def _named(values: Mapping[str, Tensor], prefix: str, n_classes: int) -> dict[str, Any]:
    """Return the scores of boxes or of masks by their names here."""
    scores = {name: float(values[prefix + key]) for key, name in SCORES.items()}
    scores |= {name: float(values[prefix + key]) for key, name in BY_SIZE.items() if float(values[prefix + key]) >= 0}
    per_class: list[float | None] = [None] * n_classes
    classes, averages = torch.atleast_1d(values["classes"]), torch.atleast_1d(values[f"{prefix}map_per_class"])
    for label, average in zip(classes.tolist(), averages.tolist(), strict=True):
        per_class[int(label)] = average if average >= 0 else None
    return {**{name: max(value, 0.0) for name, value in scores.items()}, "per_class": per_class}


def _tensors_of(found: Found, size: tuple[int, int], masked: bool) -> dict[str, Tensor]:
    tensors = {
        "boxes": torch.from_numpy(found.boxes),
        "scores": torch.from_numpy(found.scores),
        "labels": torch.from_numpy(found.labels),
    }
    return {**tensors, "masks": stacked(found.masks or (), size)} if masked else tensors


def _truth_of(boxes: Boxes, masked: bool) -> dict[str, Tensor]:
    tensors = {
        "boxes": torch.from_numpy(boxes.corners),
        "labels": torch.from_numpy(boxes.labels),
        "iscrowd": torch.from_numpy(boxes.crowd.astype(np.int64)),
    }
    return {**tensors, "masks": stacked(boxes.masks or (), boxes.size)} if masked else tensors
