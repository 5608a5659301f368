"""Objects of one image pasted into another: Ghiasi et al., CVPR 2021, which torchvision's transforms lack."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision import tv_tensors

from paucal.tasks.detection.instance_masks.fitting import fit_to_masks

Target = dict[str, Tensor]
Seen = tuple[Tensor, Target]
SMALLEST = 2.0  # pixels: the shortest side of a box that is kept, as after a crop
SHARE = 0.5  # of the other image's objects, each drawn for itself


class CopyPaste:
    """Pastes a random half of the objects of another image over an image, as section 3 of the paper does.

    Both images have been changed as in training before. Edges are hard: the paper finds that smooth ones gain nothing.
    Differs from the paper in the place: images differ in size here, so that the other image is laid over the first at
    a random place. All draws are made from torch's global generator, which is seeded for each image.

    Args:
        chance: that something is pasted into an image.
        partners: positions of the images that objects are taken from.
    """

    def __init__(self, chance: float, partners: Sequence[int]) -> None:
        self._chance, self._partners = chance, list(partners)

    def partner(self, index: int) -> int | None:
        """Draw the image that objects are taken from; None where nothing shall be pasted, and for the image itself."""
        if not self._partners or float(torch.rand(())) >= self._chance:
            return None
        other = self._partners[int(torch.randint(len(self._partners), ()))]
        return None if other == index else other

    def __call__(self, seen: Seen, other: Seen) -> Seen:
        """Return the first image with some objects of the second; arguments as those of `paste`."""
        chosen = torch.rand(len(other[1]["labels"])) < SHARE
        shifts = [_shift(new, old) for new, old in zip(seen[0].shape[-2:], other[0].shape[-2:], strict=True)]
        return paste(seen, other, chosen, (shifts[0], shifts[1]))


def paste(seen: Seen, other: Seen, chosen: Tensor, shift: tuple[int, int]) -> Seen:
    """Return the first image with the chosen objects of the second over it.

    What they hide is taken from the masks of the first image's objects, and from their boxes; objects of which nothing
    is left to see are dropped. Objects that nothing lies over stay as they are, and come first.

    Args:
        seen: (3, H, W) image, and "boxes" (N, 4) corners in pixels, "labels" (N,) and "masks" (N, H, W).
        other: the same of the second image, of any size.
        chosen: (M,) bool, which objects of the second are pasted.
        shift: rows and columns that the second image is moved by, down and to the right.
    """
    image, target = seen
    size = int(image.shape[-2]), int(image.shape[-1])
    added = _cut_out(other[1], chosen, shift, size)
    hidden = added["masks"].bool().any(0)
    pixels = torch.where(hidden, _moved(other[0].as_subclass(Tensor), shift, size), image)
    left = target["masks"].as_subclass(Tensor) * ~hidden
    touched = (left != target["masks"].as_subclass(Tensor)).flatten(1).any(1)
    changed = _joined(_picked({**target, "masks": left}, touched), added)
    fitted = fit_to_masks(pixels, {**changed, "boxes": tv_tensors.wrap(changed["boxes"], like=target["boxes"])})[1]  # type: ignore[call-arg]
    sides = fitted["boxes"][:, 2:] - fitted["boxes"][:, :2]
    large = (sides >= SMALLEST).all(1).as_subclass(Tensor)
    made = _joined(_picked(target, ~touched), _picked(fitted, large))
    boxes, masks = tv_tensors.wrap(made["boxes"], like=target["boxes"]), tv_tensors.Mask(made["masks"])  # type: ignore[call-arg]
    return pixels, {**made, "boxes": boxes, "masks": masks}


def _cut_out(target: Target, chosen: Tensor, shift: tuple[int, int], size: tuple[int, int]) -> Target:
    """Return the chosen objects, moved, and cut at the edges of a canvas of (height, width)."""
    picked, (down, right) = _picked(target, chosen), shift
    boxes = picked["boxes"] + torch.tensor([right, down, right, down])
    limits = torch.tensor([size[1], size[0], size[1], size[0]]).to(boxes)
    return {
        "boxes": torch.minimum(boxes.clamp_min(0), limits),
        "labels": picked["labels"],
        "masks": _moved(picked["masks"], shift, size),
    }


def _picked(target: Target, which: Tensor) -> Target:
    return {name: target[name].as_subclass(Tensor)[which] for name in ("boxes", "labels", "masks")}


def _joined(first: Target, second: Target) -> Target:
    return {name: torch.cat([value, second[name]]) for name, value in first.items()}


def _shift(room: int, length: int) -> int:
    """Draw how far an image is moved along a side: anywhere within the room, or so that it fills all of it."""
    low, high = sorted((0, int(room) - int(length)))
    return int(torch.randint(low, high + 1, ()))


def _moved(layers: Tensor, shift: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return (..., h, w) layers moved down and right on an empty canvas of (height, width); negative pads are crops."""
    down, right = shift
    height, width = layers.shape[-2:]
    return F.pad(layers, (right, size[1] - width - right, down, size[0] - height - down))
