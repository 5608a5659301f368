"""A detector for export: it takes one image of any size and returns a table with a fixed number of objects.

The steps are those of torchvision's detectors for a single image, in a form that torch.export can trace: wherever the
number of boxes depends on the image, a fixed number is kept, and unused rows are marked. A region is pooled from the
maps of all levels, and the result of the level that suits its size is selected.
"""

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.pool2d_same import AvgPool2dSame
from torch import Tensor, nn
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.ops import clip_boxes_to_image, nms, roi_align
from torchvision.ops.poolers import LevelMapper

from paucal.backbones.layout import Size
from paucal.backbones.stage_maps import StageMaps
from paucal.tasks.detection.network.cascade import CascadeHeads, likeliest_class
from paucal.tasks.detection.network.detector import Detector
from paucal.tasks.detection.network.region_heads import (
    BOX_CELLS,
    MASK_CELLS,
    POINTS,
    USUAL_LEVEL,
    USUAL_SIDE,
    mean_masks,
)

SMALLEST_PROPOSAL, SMALLEST_BOX = 1e-3, 1e-2  # pixels, as in torchvision


class EveryLevelPooling(nn.Module):
    """Pools each region from the maps of all levels, and selects the result of the level that suits its size.

    Args:
        strides: Stride of each map in pixels; growing powers of two.
        cells: Cells per side of a region.
        aligned: Whether to pool as `AlignedPooling` does, instead of torchvision's `MultiScaleRoIAlign`.
    """

    def __init__(self, strides: Sequence[int], cells: int, aligned: bool) -> None:
        super().__init__()
        self.strides, self.cells, self.aligned = strides, cells, aligned
        first, last = (stride.bit_length() - 1 for stride in (strides[0], strides[-1]))
        self._level_of = LevelMapper(first, last, USUAL_SIDE, USUAL_LEVEL)

    def forward(self, features: Mapping[str, Tensor], boxes: list[Tensor], sizes: Sequence[Size]) -> Tensor:
        """Return (N, channels, cells, cells) of the regions of the only image."""
        (corners,) = boxes
        placed = torch.cat([corners.new_zeros(len(corners), 1), corners], 1)  # the number of the image comes first
        levels = self._level_of(boxes)[:, None, None, None]
        points = -1 if self.aligned else POINTS
        reads = [
            roi_align(features[str(level)], placed, self.cells, 1 / stride, points, self.aligned)
            for level, stride in enumerate(self.strides)
        ]
        pooled = reads[0]
        for level, level_regions in enumerate(reads[1:], 1):
            pooled = torch.where(levels == level, level_regions, pooled)
        return pooled


class OneImageDetector(nn.Module):
    """A detector that returns one table.

    Shape:
        - images: (1, 3, H, W), normalised
        - output: (most, 6), or (most, 6 + 784) with masks: left, top, right and bottom in pixels, score and class from
          0, then the rows of a mask of 28x28 probabilities within the box; objects in descending order of the score,
          and a score of 0 in unused rows

    Example:
        >>> from paucal.backbones import BackboneSpec
        >>> from paucal.tasks.detection.network.detector import build_detector
        >>> from paucal.tasks.detection.network.options import DetectorOptions
        >>> spec = BackboneSpec("resnet18", 0, image_size=(128, 128))
        >>> detector = build_detector(spec, 3, DetectorOptions(channels=32, head_dim=16, most=20)).eval()
        >>> OneImageDetector(detector)(torch.zeros(1, 3, 100, 120)).shape
        torch.Size([20, 6])
    """

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = copy.deepcopy(detector)
        _fix_padding(self.detector.stages)
        heads, strides = self.detector.heads, self.detector.stages.strides
        self.cascade = heads.heads if isinstance(heads, CascadeHeads) else [heads]
        aligned = detector.options.pooling == "aligned"
        for head in self.cascade:
            head.box_roi_pool = EveryLevelPooling(strides, BOX_CELLS, aligned)
            if head.has_mask():
                head.mask_roi_pool = EveryLevelPooling(strides, MASK_CELLS, aligned)

    def forward(self, images: Tensor) -> Tensor:
        """Return the objects of an image as a table."""
        size = (images.shape[-2], images.shape[-1])
        maps = self.detector.stages(images)
        features = self.detector.pyramid({str(level): grid for level, grid in enumerate(maps)})
        regions = self._propose([*features.values()], size)
        logits, deltas = self.cascade[0].predict(features, [regions], [size])
        all_logits = [logits]
        for previous, head in pairwise(self.cascade):
            (regions,) = previous.refine(deltas, likeliest_class(logits), [regions], [size])
            logits, deltas = head.predict(features, [regions], [size])
            all_logits.append(logits)
        heads = self.detector.heads
        class_logits = heads.mean_logits(all_logits) if isinstance(heads, CascadeHeads) else logits
        table, labels = self._table(class_logits.softmax(-1)[:, 1:], deltas, regions, size)
        if not self.detector.options.masks:
            return table
        corners = table[:, :4]
        shares = mean_masks([head.mask_logits(features, [corners], [size]) for head in self.cascade], [labels + 1])
        return torch.cat([table, shares[0].flatten(1)], 1)

    def _propose(self, features: list[Tensor], size: Size) -> Tensor:
        """Return (N, 4) corners of the regions that may hold an object, padded with empty regions to a fixed number."""
        network, stride = self.detector.proposals, self.detector.stages.strides[0]
        n_candidates, n_kept = network.pre_nms_top_n(), network.post_nms_top_n()
        padded = (features[0].shape[-2] * stride, features[0].shape[-1] * stride)
        boxes, chances, levels = [], [], []
        for level, (grid, moves) in enumerate(zip(*network.head(features), strict=True)):
            logits, deltas = concat_box_prediction_layers([grid], [moves])
            decoded = network.box_coder.decode_single(deltas, self._anchors(level, grid, padded))
            # Empty regions fill up the number of candidates.
            logits = torch.cat([logits[:, 0], logits.new_full((n_candidates,), -torch.inf)])
            decoded = torch.cat([decoded, decoded.new_zeros(n_candidates, 4)])
            best = logits.topk(n_candidates).indices
            boxes.append(clip_boxes_to_image(decoded[best], size))
            chances.append(logits[best].sigmoid())
            levels.append(torch.full((n_candidates,), level))
        corners, chance = torch.cat(boxes), torch.cat(chances)
        usable = (corners[:, 2:] - corners[:, :2]).amin(1) >= SMALLEST_PROPOSAL
        best, is_kept = _suppress(corners, chance, torch.cat(levels), usable, network.nms_thresh, n_kept)
        return corners[best] * is_kept[:, None]

    def _anchors(self, level: int, grid: Tensor, padded: Size) -> Tensor:
        """Return the (rows * columns * shapes, 4) anchors of a map, in torchvision's order."""
        rows, columns = grid.shape[-2], grid.shape[-1]
        generator = self.detector.proposals.anchor_generator
        shapes = generator.generate_anchors([*generator.sizes[level]], [*generator.aspect_ratios[level]])
        # Positions are counted on the map, since torch.export does not support a range of unknown length.
        down = (torch.ones_like(grid[0, 0, :, 0]).cumsum(0) - 1) * (padded[0] // rows)
        across = (torch.ones_like(grid[0, 0, 0]).cumsum(0) - 1) * (padded[1] // columns)
        corners = torch.stack([*torch.meshgrid(across, down, indexing="xy")], -1).view(-1, 1, 2)
        return (corners.repeat(1, 1, 2) + shapes).view(-1, 4)

    def _table(self, scores: Tensor, deltas: Tensor, regions: Tensor, size: Size) -> tuple[Tensor, Tensor]:
        """Return the table of the best objects, and the int64 class of each.

        The N regions have (N, K) probabilities, and (N, 4) or (N, 4 (K + 1)) last corrections.
        """
        last, classes = self.cascade[-1], scores.shape[1]
        boxes = last.box_coder.decode_single(deltas, regions).view(len(regions), -1, 4)
        boxes = boxes[:, 1:] if boxes.shape[1] > 1 else boxes.expand(-1, classes, -1)
        corners, chance = clip_boxes_to_image(boxes.reshape(-1, 4), size), scores.reshape(-1)
        labels = torch.arange(classes).repeat(len(regions))
        usable = ((corners[:, 2:] - corners[:, :2]).amin(1) >= SMALLEST_BOX) & (chance > last.score_thresh)
        best, is_kept = _suppress(corners, chance, labels, usable, last.nms_thresh, last.detections_per_img)
        columns = (corners[best] * is_kept[:, None], (chance[best] * is_kept)[:, None], labels[best][:, None])
        return torch.cat([column.to(chance.dtype) for column in columns], 1), labels[best]


def _fix_padding(stages: StageMaps) -> None:
    """Replace paddings that depend on the side of an image, as in TensorFlow's layers, by constants.

    They are constant for sides that are multiples of the stride, and `StageMaps` pads all images to such sides.
    """
    for name, layer in [*stages.named_modules()]:
        if isinstance(layer, Conv2dSame) and isinstance(layer, nn.Conv2d):
            plain = nn.Conv2d(
                layer.in_channels,
                layer.out_channels,
                layer.kernel_size,  # type: ignore[arg-type]
                layer.stride,  # type: ignore[arg-type]
                dilation=layer.dilation,  # type: ignore[arg-type]
                groups=layer.groups,
                bias=layer.bias is not None,
            )
            plain.weight, plain.bias = layer.weight, layer.bias
            around = nn.ZeroPad2d(_constant_padding(layer.kernel_size, layer.stride, layer.dilation))
            stages.set_submodule(name, nn.Sequential(around, plain))
        elif isinstance(layer, AvgPool2dSame) and isinstance(layer, nn.AvgPool2d):
            around = nn.ZeroPad2d(_constant_padding(layer.kernel_size, layer.stride, (1, 1)))  # type: ignore[arg-type]
            stages.set_submodule(name, nn.Sequential(around, nn.AvgPool2d(layer.kernel_size, layer.stride)))
        elif isinstance(layer, nn.AvgPool2d) and layer.kernel_size == layer.stride:
            layer.ceil_mode = False


def _constant_padding(
    kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, int, int, int]:
    """Return the cells to add on the left, right, top and bottom, where a side is a multiple of the stride."""
    axes = zip(kernel, stride, dilation, strict=True)
    rows, columns = (max((cells - 1) * gap + 1 - step, 0) for cells, step, gap in axes)
    return columns // 2, columns - columns // 2, rows // 2, rows - rows // 2


def _suppress(
    boxes: Tensor, scores: Tensor, groups: Tensor, usable: Tensor, max_overlap: float, count: int
) -> tuple[Tensor, Tensor]:
    """Non-maximum suppression within groups, with a fixed number of results.

    Args:
        boxes: (N, 4) corners in pixels.
        scores: (N,) in [0, 1].
        groups: (N,) int64; boxes of different groups do not suppress each other.
        usable: (N,) bool, boxes that take part.
        max_overlap: Overlap above which the box with the lower score is suppressed.
        count: Number of results, at most N.

    Returns:
        (count,) positions in descending order of the score, and whether each is a box that was kept.
    """
    candidates = usable.nonzero()[:, 0]
    # Boxes of different groups no longer overlap.
    separated = boxes + (groups * (boxes.max() + 1))[:, None].to(boxes.dtype)
    # torch.export assumes that torchvision's nms keeps two boxes or more: two outside of the image make this true.
    far_boxes = boxes.new_tensor([[-2, -2, -1, -1], [-4, -4, -3, -3]])
    corners = torch.cat([separated[candidates], far_boxes])
    candidate_scores = torch.cat([scores[candidates], scores.new_zeros(2)])
    numbers = torch.cat([candidates, len(boxes) + torch.arange(2)])
    kept_rows = numbers[nms(corners, candidate_scores, max_overlap)]
    ones = torch.ones_like(kept_rows, dtype=scores.dtype)
    is_kept = scores.new_zeros(len(boxes) + 2).scatter(0, kept_rows, ones)[:-2]
    ranked, best = torch.where(is_kept > 0, scores, -1.0).topk(count)
    return best, ranked >= 0
