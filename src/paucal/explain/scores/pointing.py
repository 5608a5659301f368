"""Pointing: whether a map finds an object whose place is known, because it was pasted there.

Zhang et al. 2018, "Top-down Neural Attention by Excitation Backprop" (the pointing game); pasted objects as in the grid
pointing game of Böhle et al. 2021. Here a reduced image of another class is pasted at a random place of an image.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 0.5  # of the pasted image over the image's; a quarter of the area


@dataclass(frozen=True, eq=False)
class Pasted:
    """Images with an image of another class in them.

    Attributes:
        images: (B, C, H, W).
        classes: (B,) of what was pasted.
        boxes: (B, 4) top, left, bottom, right in pixels.
    """

    images: Tensor
    classes: Tensor
    boxes: Tensor


def paste_objects(images: Tensor, classes: Tensor, generator: torch.Generator, side: float = SIDE) -> Pasted:
    """Paste into each image a reduced one of another class, at a random place.

    Images of a batch that knows a single class are left out.

    Args:
        images: (B, C, H, W).
        classes: (B,) the true ones.
        generator: chooses partners and places.
        side: of what is pasted, over the image's.
    """
    height, width = images.shape[2:]
    rows, columns = max(1, round(side * height)), max(1, round(side * width))
    small = F.interpolate(images, (rows, columns), mode="bilinear", align_corners=False, antialias=True)
    made, labels, boxes = [], [], []
    for index in range(len(images)):
        others = (classes != classes[index]).nonzero()[:, 0]
        if not len(others):
            continue
        other = int(others[_draw(len(others), generator)])
        top, left = _draw(height - rows + 1, generator), _draw(width - columns + 1, generator)
        picture = images[index].clone()
        picture[:, top : top + rows, left : left + columns] = small[other]
        made.append(picture)
        labels.append(int(classes[other]))
        boxes.append([top, left, top + rows, left + columns])
    if not made:
        return Pasted(images[:0], classes[:0], torch.zeros(0, 4, dtype=torch.long))
    return Pasted(torch.stack(made), torch.tensor(labels), torch.tensor(boxes))


def pointing_hits(maps: Tensor, boxes: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return whether each map's highest place lies in the box, and the share of its positive values there; both (B,).

    Args:
        maps: (B, h, w), read as cells of equal size; a cell counts by its area in the box.
        boxes: (B, 4) in pixels.
        size: (height, width) of the images in pixels.
    """
    inside = torch.stack([_share_inside(box, (maps.shape[1], maps.shape[2]), size) for box in boxes.tolist()])
    inside = inside.to(maps.device)
    best = maps.flatten(1).argmax(1, keepdim=True)
    hit = inside.flatten(1).gather(1, best)[:, 0] > 0.5
    positive = maps.clamp(min=0).flatten(1)
    total = positive.sum(1)
    mass = (positive * inside.flatten(1)).sum(1) / total.clamp_min(1e-30)
    return hit.float(), torch.where(total > 0, mass, inside.mean((1, 2)))


def _share_inside(box: list[int], grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    top, left, bottom, right = box
    down = _overlap(top, bottom, grid[0], size[0])
    across = _overlap(left, right, grid[1], size[1])
    return down[:, None] * across


def _overlap(start: float, end: float, cells: int, length: int) -> Tensor:
    """Return the share of each of `cells` equal parts of a length that lies between two points of it."""
    edges = torch.arange(cells + 1) * (length / cells)
    shared = torch.minimum(edges[1:], torch.tensor(float(end))) - torch.maximum(edges[:-1], torch.tensor(float(start)))
    return shared.clamp(min=0) / (length / cells)


def _draw(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (1,), generator=generator))
