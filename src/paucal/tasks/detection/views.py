"""Transforms of an image together with its boxes and masks, including copy-paste."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision import tv_tensors
from torchvision.ops import masks_to_boxes
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as transforms

from paucal.data.views.transforms import random_int

Jitter = Literal["none", "light", "multiscale", "cropped", "large"]
Target = dict[str, Tensor]  # "boxes", "labels" and, if known, "masks" of an image
ImageAndTarget = tuple[Tensor, Target]  # transformed image and its target
BoxTransform = Callable[[tv_tensors.Image, Target], ImageAndTarget]
LIGHT_SCALES = (0.8, 0.85, 0.9, 0.95, 1.0)
# Scales are fractions of the maximum shorter side; in DrLoc and EsViT, that maximum is 800 pixels.
PAPER_SCALES = tuple(round(0.6 + 0.04 * index, 2) for index in range(11))  # 480, 512, ..., 800 pixels
CROPPED_SCALES = (0.5, 0.625, 0.75)  # 400, 500 and 600 pixels
CROPPED_SIDES = (0.48, 0.75)  # minimum and maximum side of a crop: 384 and 600 pixels
# Minimum and maximum scale of large-scale jitter. The paper's minimum is 0.1, but its data set has thousands of images
# with large objects.
LARGE_SCALES = (0.5, 2.0)
COLOUR_STRENGTH = 0.2  # maximum relative change of brightness, contrast and saturation
MIN_SIDE = 2.0  # minimum side of a box after a crop, in pixels
BOX_TOLERANCE = 1.0  # pixels by which a box may extend beyond its mask, since masks consist of whole pixels
PASTE_PROBABILITY = 0.5  # probability with which each object of the other image is pasted


def make_evaluation_transform(size: Sequence[int], mean: Sequence[float], std: Sequence[float]) -> BoxTransform:
    """Return the transform of a deployed detector: resizing to at most `size` (shorter, longer), and normalisation."""
    return v2.Compose([_random_resize(size, (1.0,)), *_normalise(mean, std)])


def make_empty_target(size: tuple[int, int]) -> Target:
    """Return an empty target for an image of `size` (height, width) without annotations."""
    boxes = tv_tensors.BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=size)  # type: ignore[call-overload]
    return {"boxes": boxes, "labels": torch.zeros(0, dtype=torch.int64)}


def make_training_transform(
    size: Sequence[int], mean: Sequence[float], std: Sequence[float], hflip: float = 0.5, jitter: Jitter = "light"
) -> BoxTransform:
    """Return the training transform of images with boxes.

    Transformed boxes with a side below 2 pixels are dropped; with "cropped", only boxes without an area are dropped.
    The jitter is a random change of size and colour. "light": scales from 0.8 to 1, and colours changed by up to 20 %.
    "multiscale": scales from 0.6 to 1 in steps of 0.04, as published (DrLoc's supplement, section 4.1). "cropped": like
    "multiscale", but half of the images are cropped first, as in Swin's code. "large": large-scale jitter (Ghiasi
    et al., CVPR 2021, section 3) with scales from 0.5 to 2, then a crop or padding to a square; boxes are fitted to the
    visible parts of the masks.
    """
    longest = max(size)
    scaled: list[v2.Transform] = {
        "none": [_random_resize(size, (1.0,))],
        "light": [_random_resize(size, LIGHT_SCALES)],
        "multiscale": [_random_resize(size, PAPER_SCALES)],
        "cropped": [v2.RandomChoice([v2.Identity(), make_crop(size)]), _random_resize(size, PAPER_SCALES)],
        "large": [
            v2.ScaleJitter((longest, longest), LARGE_SCALES, antialias=True),
            v2.RandomCrop(longest, pad_if_needed=True),
        ],
    }[jitter]
    colours = (
        [v2.ColorJitter(COLOUR_STRENGTH, COLOUR_STRENGTH, COLOUR_STRENGTH)] if jitter in ("light", "large") else []
    )
    fitted = [fit_to_masks] if jitter == "large" else []
    filtered = [keep_boxes_with_area] if jitter == "cropped" else [v2.SanitizeBoundingBoxes(min_size=MIN_SIDE)]
    cleaned = [v2.ClampBoundingBoxes(), *fitted, *filtered]
    return v2.Compose([v2.RandomHorizontalFlip(hflip), *scaled, *cleaned, *colours, *_normalise(mean, std)])


def keep_boxes_with_area(image: Tensor, target: Target) -> ImageAndTarget:
    """Remove boxes without an area, with their labels and masks."""
    corners = target["boxes"]
    has_area = (corners[:, 2:] > corners[:, :2]).all(1)
    return image, {
        name: tv_tensors.wrap(value[has_area], like=value)  # type: ignore[call-arg]
        for name, value in target.items()
    }


def make_crop(size: Sequence[int]) -> Callable[..., Any]:
    """Return a transform that scales an image down and crops a rectangle of random height and width."""
    resize, bounds = _random_resize(size, CROPPED_SCALES), [round(scale * min(size)) for scale in CROPPED_SIDES]

    def crop(image: Tensor, target: Target) -> ImageAndTarget:
        image, target = resize(image, target)
        sides = [int(side) for side in image.shape[-2:]]
        crop_sides = [random_int(*(min(side, bound) for bound in bounds)) for side in sides]
        corner = [random_int(0, side - length) for side, length in zip(sides, crop_sides, strict=True)]
        area = (*corner, *crop_sides)
        return transforms.crop(image, *area), {
            name: value if name == "labels" else transforms.crop(value, *area) for name, value in target.items()
        }

    return crop


def _random_resize(size: Sequence[int], scales: Sequence[float]) -> v2.Transform:
    """Return a transform that resizes the shorter side to a random fraction of its maximum, and limits the longer."""
    return v2.RandomShortestSize([round(scale * min(size)) for scale in scales], max(size), antialias=True)


def _normalise(mean: Sequence[float], std: Sequence[float]) -> list[v2.Transform]:
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(mean), list(std))]


def fit_to_masks(image: Tensor, target: Target) -> ImageAndTarget:
    """Shrink boxes that extend more than a pixel beyond their masks, and drop objects without a visible pixel.

    After a crop, a clamped box would be larger than the visible part of a round object.
    """
    if "masks" not in target:
        return image, target
    is_visible = target["masks"].as_subclass(Tensor).bool().flatten(1).any(1)  # `any` of uint8 would be uint8
    masks, boxes = target["masks"][is_visible], target["boxes"][is_visible].as_subclass(Tensor)
    tight = masks_to_boxes(masks.as_subclass(Tensor)).to(boxes) if len(masks) else boxes
    # `masks_to_boxes` returns the positions of the last pixels, whose right and bottom edges are one pixel further.
    tight = tight + torch.tensor([0, 0, 1, 1]).to(boxes) if len(masks) else tight
    excess = torch.cat([tight[:, :2] - boxes[:, :2], boxes[:, 2:] - tight[:, 2:]], 1)
    fitted = torch.where(excess > BOX_TOLERANCE, tight, boxes)
    new_fields = {
        "boxes": tv_tensors.wrap(fitted, like=target["boxes"]),  # type: ignore[call-arg]
        "masks": tv_tensors.wrap(masks, like=target["masks"]),  # type: ignore[call-arg]
        "labels": target["labels"][is_visible],
    }
    return image, {**target, **new_fields}


class CopyPaste:
    """Pastes objects of another image into an image (Ghiasi et al., CVPR 2021, section 3).

    Each object is pasted with probability 0.5. Both images are already augmented. Edges are not smoothed, since the
    paper finds no gain from smoothing. Unlike in the paper, the other image is placed at a random position, since
    images differ in size. All random numbers come from torch's global generator, which is seeded for each image.
    Objects are pasted with probability `chance` into an image, from an image at one of `source_indices`.
    """

    def __init__(self, chance: float, source_indices: Sequence[int]) -> None:
        self._chance, self._source_indices = chance, list(source_indices)

    def draw_source_index(self, index: int) -> int | None:
        """Draw the position of an image to paste from; None to paste nothing, or if `index` itself was drawn."""
        if not self._source_indices or float(torch.rand(())) >= self._chance:
            return None
        other = self._source_indices[int(torch.randint(len(self._source_indices), ()))]
        return None if other == index else other

    def __call__(self, destination: ImageAndTarget, source: ImageAndTarget) -> ImageAndTarget:
        """Return the image `destination` with random objects of `source` pasted into it."""
        is_pasted = torch.rand(len(source[1]["labels"])) < PASTE_PROBABILITY
        down, right = (
            random_int(*sorted((0, int(new) - int(old))))
            for new, old in zip(destination[0].shape[-2:], source[0].shape[-2:], strict=True)
        )
        return paste_objects(destination, source, is_pasted, (down, right))


def paste_objects(
    destination: ImageAndTarget, source: ImageAndTarget, is_pasted: Tensor, shift: tuple[int, int]
) -> ImageAndTarget:
    """Paste objects of `source` into an image, moved by `shift` = (down, right) pixels; `is_pasted` is (N,) bool.

    Pasted objects hide pixels of the image's own objects: the masks and boxes of partly hidden objects are reduced, and
    fully hidden objects are dropped. Objects without hidden pixels are unchanged and come first in the result.
    """
    image, target = destination
    size = int(image.shape[-2]), int(image.shape[-1])
    pasted, (down, right) = _select_objects(source[1], is_pasted), shift
    shifted_boxes = pasted["boxes"] + torch.tensor([right, down, right, down])
    limits = torch.tensor([size[1], size[0], size[1], size[0]]).to(shifted_boxes)
    added = {
        "boxes": torch.minimum(shifted_boxes.clamp_min(0), limits),
        "labels": pasted["labels"],
        "masks": _shift_layers(pasted["masks"], shift, size),
    }
    hidden = added["masks"].bool().any(0)
    pixels = torch.where(hidden, _shift_layers(source[0].as_subclass(Tensor), shift, size), image)
    visible_masks = target["masks"].as_subclass(Tensor) * ~hidden
    is_reduced = (visible_masks != target["masks"].as_subclass(Tensor)).flatten(1).any(1)
    covered_objects = _concatenate_objects(_select_objects({**target, "masks": visible_masks}, is_reduced), added)
    joined_boxes = tv_tensors.wrap(covered_objects["boxes"], like=target["boxes"])  # type: ignore[call-arg]
    fitted = fit_to_masks(pixels, {**covered_objects, "boxes": joined_boxes})[1]
    sides = fitted["boxes"][:, 2:] - fitted["boxes"][:, :2]
    is_large = (sides >= MIN_SIDE).all(1).as_subclass(Tensor)
    merged = _concatenate_objects(_select_objects(target, ~is_reduced), _select_objects(fitted, is_large))
    boxes, masks = tv_tensors.wrap(merged["boxes"], like=target["boxes"]), tv_tensors.Mask(merged["masks"])  # type: ignore[call-arg]
    return pixels, {**merged, "boxes": boxes, "masks": masks}


def _select_objects(target: Target, object_mask: Tensor) -> Target:
    return {name: target[name].as_subclass(Tensor)[object_mask] for name in ("boxes", "labels", "masks")}


def _concatenate_objects(first: Target, second: Target) -> Target:
    return {name: torch.cat([value, second[name]]) for name, value in first.items()}


def _shift_layers(layers: Tensor, shift: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Move (..., h, w) layers down and to the right, and crop or zero-pad the layers to (height, width)."""
    down, right = shift
    height, width = layers.shape[-2:]
    return F.pad(layers, (right, size[1] - width - right, down, size[0] - height - down))
