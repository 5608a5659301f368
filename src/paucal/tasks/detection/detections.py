"""The detections of a detector in images, and their storage as a COCO annotation file."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paucal.evaluation.predictions import evaluation_mode
from paucal.tasks.detection.batches import BoxBatch
from paucal.tasks.detection.masks import RunLengths, paste_masks, unpack_mask
from paucal.types import UserError

EDGES = ("left", "top", "right", "bottom")  # names of the table columns with the edges of a box


@dataclass(frozen=True)
class Detections:
    """The N detected objects in one image, in descending order of the score, in pixels of the annotated image."""

    boxes: NDArray[np.float32]  # (N, 4), left, top, right and bottom
    scores: NDArray[np.float32]  # (N,), class probabilities
    labels: NDArray[np.int64]  # (N,), classes from 0
    masks: tuple[RunLengths, ...] | None = None  # mask of each object; None if the detector predicts no masks

    def __len__(self) -> int:
        return len(self.scores)

    def with_min_score(self, score: float) -> "Detections":
        """Return the detections with at least this score."""
        is_kept = self.scores >= score
        masks = None if self.masks is None else tuple(self.masks[int(index)] for index in np.flatnonzero(is_kept))
        return Detections(self.boxes[is_kept], self.scores[is_kept], self.labels[is_kept], masks)

    def mask(self, index: int) -> NDArray[np.bool_]:
        """Return the (H, W) mask of the detection with this index."""
        if self.masks is None:
            raise UserError("this detector predicts only boxes: train a detector with --masks on.")
        return unpack_mask(self.masks[index]).astype(bool)


@torch.inference_mode()
def detect_all(
    detector: nn.Module,
    batches: Iterable[BoxBatch],
    device: torch.device,
    progress: Callable[[int], None] | None = None,
) -> dict[int, Detections]:
    """Return the detections in each image, by its position in the set; `progress` gets the number of images so far."""
    detections: dict[int, Detections] = {}
    with evaluation_mode(detector):
        for batch in batches:
            outputs = detector(batch.images.to(device), batch.image_sizes())
            for index, output in enumerate(outputs):
                sides, size = batch.sizes[index].tolist(), batch.original_sizes[index].tolist()
                detections[int(batch.ids[index])] = rescale(output, (sides[0], sides[1]), (size[0], size[1]))
            if progress is not None:
                progress(len(detections))
    return detections


def rescale(output: Mapping[str, Tensor], input_size: tuple[int, int], size: tuple[int, int]) -> Detections:
    """Convert an output of `Detector.forward` from pixels of the network's input to pixels of another image size."""
    order = output["scores"].argsort(descending=True).cpu()
    scale = torch.tensor([size[1] / input_size[1], size[0] / input_size[0]]).repeat(2)
    boxes = (output["boxes"].float().cpu() * scale)[order].float()
    scores, labels = output["scores"].float().cpu()[order], output["labels"].cpu()[order]
    masks = paste_masks(output["masks"].float().cpu()[order], boxes, size) if "masks" in output else None
    return Detections(boxes.numpy(), scores.numpy(), labels.numpy(), masks)


def coco_json_text(
    keys: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    detections: Sequence[Detections],
    classes: Sequence[str],
    category_ids: Sequence[int],
) -> str:
    """Return detections as the text of a COCO annotation file with scores; masks are compressed run lengths."""
    images = [
        {"id": number, "file_name": key, "height": size[0], "width": size[1]}
        for number, (key, size) in enumerate(zip(keys, sizes, strict=True), 1)
    ]
    annotations: list[dict[str, Any]] = []
    for number, image_detections in enumerate(detections, 1):
        for index, (left, top, right, bottom) in enumerate(image_detections.boxes.tolist()):
            box = [left, top, right - left, bottom - top]
            annotation: dict[str, Any] = {
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": category_ids[int(image_detections.labels[index])],
                "bbox": [round(value, 2) for value in box],
                "area": round(box[2] * box[3], 2),
                "iscrowd": 0,
                "score": round(float(image_detections.scores[index]), 5),
            }
            if image_detections.masks is not None:
                mask = image_detections.masks[index]
                packed = {"size": list(mask["size"]), "counts": mask["counts"].decode("ascii")}
                annotation |= {"area": int(unpack_mask(mask).sum()), "segmentation": packed}
            annotations.append(annotation)
    categories = [{"id": number, "name": name} for number, name in zip(category_ids, classes, strict=True)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    return json.dumps(content, ensure_ascii=False) + "\n"


def read_detections(file: Path) -> pa.Table:
    """Read a file written by `coco_json_text`, as a table of image key, class, score and corners in pixels."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        keys = {image["id"]: image["file_name"] for image in content["images"]}
        names = {category["id"]: category["name"] for category in content["categories"]}
        objects = content["annotations"]
        boxes = np.asarray([entry["bbox"] for entry in objects], dtype=np.float64).reshape(-1, 4)
        return pa.table(
            {
                "key": pa.array([keys[entry["image_id"]] for entry in objects], pa.string()),
                "class": pa.array([names[entry["category_id"]] for entry in objects], pa.string()),
                "score": pa.array([entry["score"] for entry in objects], pa.float64()),
                **dict(zip(EDGES, [boxes[:, 0], boxes[:, 1], *(boxes[:, :2] + boxes[:, 2:]).T], strict=True)),
            }
        )
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{str(file)!r} cannot be read ({problem}): write it again with 'paucal eval'.") from None
