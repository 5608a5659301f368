"""Boxes that stay those of what is seen of their objects, after a crop or where another object hides a part."""

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.ops import masks_to_boxes

SLACK = 1.0  # pixel: annotated boxes have fractions, which masks of whole pixels would lose


def fit_to_masks(image: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Move the sides of boxes that lie more than a pixel outside of their masks to them; drop objects without a pixel.

    A crop that only clamps a box leaves it larger than what is seen of a round object. Nothing changes without masks.

    Args:
        image: passed on.
        target: "boxes" (N, 4) corners in pixels, "labels" (N,) and, where they are known, "masks" (N, H, W).
    """
    if "masks" not in target:
        return image, target
    seen = target["masks"].as_subclass(Tensor).bool().flatten(1).any(1)  # of uint8 it would be uint8
    masks, boxes = target["masks"][seen], target["boxes"][seen].as_subclass(Tensor)
    tight = masks_to_boxes(masks.as_subclass(Tensor)).to(boxes) if len(masks) else boxes
    tight = tight + torch.tensor([0, 0, 1, 1]).to(boxes) if len(masks) else tight  # the edges of the last pixels
    fitted = torch.where(_outwards(boxes, tight) > SLACK, tight, boxes)
    changed = {
        "boxes": tv_tensors.wrap(fitted, like=target["boxes"]),  # type: ignore[call-arg]
        "masks": tv_tensors.wrap(masks, like=target["masks"]),  # type: ignore[call-arg]
        "labels": target["labels"][seen],
    }
    return image, {**target, **changed}


def _outwards(boxes: Tensor, tight: Tensor) -> Tensor:
    """Return (N, 4) how far each side lies outside of the tight box, in pixels."""
    return torch.cat([tight[:, :2] - boxes[:, :2], boxes[:, 2:] - tight[:, 2:]], 1)
