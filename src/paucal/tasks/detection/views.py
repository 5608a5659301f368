"""How images, their boxes and masks are changed together before a detector sees them."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as transforms

from paucal.tasks.detection.instance_masks.fitting import fit_to_masks

Jitter = Literal["none", "light", "multiscale", "cropped", "large"]
LIGHT_SCALES = (0.8, 0.85, 0.9, 0.95, 1.0)
PAPER_SCALES = tuple(round(0.6 + 0.04 * place, 2) for place in range(11))  # of 800 pixels: 480, 512, ..., 800
CROPPED_SCALES, CROPPED_SIDES = (0.5, 0.625, 0.75), (0.48, 0.75)  # of 800 pixels: 400, 500, 600; crops of 384 to 600
LARGE_SCALES = (
    0.5,
    2.0,
)  # of large-scale jitter; its paper goes down to 0.1, with thousands of images of large objects
COLOUR = 0.2
SMALLEST = 2.0  # pixels: what is left of a box that a crop has cut has to be seen


class BoxView:
    """An image and its boxes, changed alike by torchvision's transforms.

    Args:
        transform: takes an image and a dictionary with "boxes", "labels" and, where they are known, "masks".
    """

    def __init__(self, transform: Callable[..., Any]) -> None:
        self._transform = transform

    def __call__(self, image: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the (3, H, W) float image and the boxes that are left."""
        return self._transform(image, target)


def evaluation_view(size: Sequence[int], mean: Sequence[float], std: Sequence[float]) -> BoxView:
    """Return the view of a deployed detector: the image as large as fits, without any change.

    Args:
        size: most pixels of the shorter and of the longer side, or of the longer side alone.
        mean: per channel, of pixels in [0, 1].
        std: per channel.
    """
    return BoxView(v2.Compose([_fitting(size, (1.0,)), *_finished(mean, std)]))


def training_view(
    size: Sequence[int], mean: Sequence[float], std: Sequence[float], hflip: float = 0.5, jitter: Jitter = "light"
) -> BoxView:
    """Return the view of training.

    Args:
        size: as in `evaluation_view`.
        mean: per channel.
        std: per channel.
        hflip: chance of a mirror image.
        jitter: "light" varies size by a fifth and colours a little; "large" is large-scale jitter (Ghiasi et al., CVPR
            2021, section 3): scaled by half to double, then cropped or padded to a square, boxes fitted to what is left
            of the masks where there are some; "multiscale" varies size from 0.6 to 1 in steps of 0.04, as published
            (DrLoc's supplement, section 4.1); "cropped" does so too, and before it cuts a part out of half of the
            images, as the program that the papers used; "none" does neither. Boxes of under 2 pixels are dropped;
            "cropped" keeps every box that has an area.
    """
    longest = max(size)
    scaled: list[v2.Transform] = {
        "none": [_fitting(size, (1.0,))],
        "light": [_fitting(size, LIGHT_SCALES)],
        "multiscale": [_fitting(size, PAPER_SCALES)],
        "cropped": [v2.RandomChoice([v2.Identity(), _cut_out(size)]), _fitting(size, PAPER_SCALES)],
        "large": [
            v2.ScaleJitter((longest, longest), LARGE_SCALES, antialias=True),
            v2.RandomCrop(longest, pad_if_needed=True),
        ],
    }[jitter]
    colours = [v2.ColorJitter(COLOUR, COLOUR, COLOUR)] if jitter in ("light", "large") else []
    fitted = [fit_to_masks] if jitter == "large" else []
    small = [keep_boxes_with_area] if jitter == "cropped" else [v2.SanitizeBoundingBoxes(min_size=SMALLEST)]
    tidy = [v2.ClampBoundingBoxes(), *fitted, *small]
    return BoxView(v2.Compose([v2.RandomHorizontalFlip(hflip), *scaled, *tidy, *colours, *_finished(mean, std)]))


def keep_boxes_with_area(image: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return an image with the boxes that have an area, and with their labels and masks."""
    corners = target["boxes"]
    kept = (corners[:, 2:] > corners[:, :2]).all(1)
    return image, {
        name: tv_tensors.wrap(value[kept], like=value)  # type: ignore[call-arg]
        for name, value in target.items()
    }


def _cut_out(size: Sequence[int]) -> Callable[..., Any]:
    """Return a view that scales an image down and cuts a part of random sides out of it."""
    scaled, bounds = _fitting(size, CROPPED_SCALES), [round(share * min(size)) for share in CROPPED_SIDES]

    def cut(image: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        image, target = scaled(image, target)
        sides = [int(side) for side in image.shape[-2:]]
        part = [_drawn(*(min(side, bound) for bound in bounds)) for side in sides]
        corner = [_drawn(0, side - length) for side, length in zip(sides, part, strict=True)]
        area = (*corner, *part)
        return transforms.crop(image, *area), {
            name: value if name == "labels" else transforms.crop(value, *area) for name, value in target.items()
        }

    return cut


def _drawn(low: int, high: int) -> int:
    """Return a whole number from `low` to `high`, both included."""
    return int(torch.randint(low, high + 1, ()))


def _fitting(size: Sequence[int], scales: Sequence[float]) -> v2.Transform:
    """Return a resize that keeps the shape, to the largest that fits at one of the scales."""
    shorter, longer = min(size), max(size)
    return v2.RandomShortestSize([round(scale * shorter) for scale in scales], longer, antialias=True)


def _finished(mean: Sequence[float], std: Sequence[float]) -> list[v2.Transform]:
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(mean), list(std))]
