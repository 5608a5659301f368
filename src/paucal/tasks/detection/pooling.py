"""Regions read from the maps of a pyramid, each from the map whose cells suit its size."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchvision.ops import MultiScaleRoIAlign, roi_align
from torchvision.ops.poolers import LevelMapper

USUAL_SIDE, USUAL_LEVEL = 224, 4  # pixels of a region that is read at a stride of 2^4
POINTS = 2  # along each side of a cell


class AlignedPooling(nn.Module):
    """Regions read without a shift of half a cell, at as many points of each cell as it has of the map.

    These are the `aligned` and the adaptive sampling of the published programs, which torchvision's
    `MultiScaleRoIAlign` cannot be asked for.

    Args:
        strides: Pixels from one cell to the next, of each map; powers of two, growing.
        cells: Cells of a region along each side.
    """

    def __init__(self, strides: Sequence[int], cells: int) -> None:
        super().__init__()
        self.strides, self.cells = tuple(strides), cells
        first, last = (round(math.log2(stride)) for stride in (strides[0], strides[-1]))
        self._level_of = LevelMapper(first, last, USUAL_SIDE, USUAL_LEVEL)

    def forward(self, features: Mapping[str, Tensor], boxes: list[Tensor], sizes: Sequence[tuple[int, int]]) -> Tensor:
        """Return (regions, channels, cells, cells) of all images; arguments as those of torchvision's pooling.

        Args:
            features: (B, channels, H, W) by the number of the map.
            boxes: (N_i, 4) corners in pixels per image.
            sizes: Unused; strides are known.
        """
        images = torch.cat([torch.full_like(one[:, :1], image) for image, one in enumerate(boxes)])
        regions, levels = torch.cat([images, torch.cat(boxes)], dim=1), self._level_of(boxes)
        first = features["0"]
        pooled = first.new_zeros(len(regions), first.shape[1], self.cells, self.cells)
        for level, stride in enumerate(self.strides):
            inside = torch.where(levels == level)[0]
            found = roi_align(features[str(level)], regions[inside], self.cells, 1 / stride, aligned=True)
            pooled[inside] = found.to(pooled.dtype)
        return pooled


def make_pooling(strides: Sequence[int], cells: int, aligned: bool) -> nn.Module:
    """Return what reads regions of so many cells a side: aligned, or torchvision's with 2x2 points a cell."""
    if aligned:
        return AlignedPooling(strides, cells)
    return MultiScaleRoIAlign([str(level) for level in range(len(strides))], cells, POINTS)
