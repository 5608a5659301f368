"""Token labeling's targets the dense way, as its published program builds them, with the axes in the right order.

Every map becomes a (K, H, W) tensor, is pooled over the crop to the cells and to one, and goes through a softmax.
"""

import torch
from torch import Tensor
from torchvision.ops import roi_align


def dense_targets(values: Tensor, indices: Tensor, boxes: Tensor, size: int, classes: int, smoothing: float) -> Tensor:
    """Return (B, K, 1 + size * size) targets of the crop and of its cells.

    Args:
        values: (B, k, H, W) logits.
        indices: (B, k, H, W) their classes.
        boxes: (B, 4) crops as x1, y1, x2, y2, shares of the image.
        size: Cells along a side.
        classes: K.
        smoothing: Share spread over all classes.
    """
    batch, _, height, width = values.shape
    maps = torch.zeros(batch, classes, height, width, device=values.device).scatter_(1, indices, values)
    scale = boxes.new_tensor([width, height, width, height])
    corners = boxes * scale - 0.5
    rows = torch.cat((torch.arange(batch, device=boxes.device)[:, None].to(boxes), corners), 1)
    pooled = [roi_align(maps, rows, (side, side), aligned=False).flatten(2) for side in (1, size)]
    targets = torch.cat(pooled, 2).softmax(1)
    return targets * (1 - smoothing) + smoothing / classes
