"""A detector for export, which takes one image of any size and returns a table with a fixed number of objects.

The steps are those of torchvision's detectors for a single image, in a form that torch.export can trace: wherever the
number of boxes depends on the image, a fixed number is kept, and unused rows have a score of 0. Each region is pooled
from the maps of all levels, and then the result from the level for the region's size is selected.
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

from paucal.backbones.layout import Size
from paucal.backbones.stage_maps import PyramidBackbone
from paucal.tasks.detection.network.cascade import CascadeHeads, likeliest_class
from paucal.tasks.detection.network.detector import Detector
from paucal.tasks.detection.network.region_heads import (
    BOX_POOL_SIZE,
    MASK_POOL_SIZE,
    SAMPLING_POINTS,
    AlignedPooling,
    mean_masks,
)

MIN_PROPOSAL_SIDE, MIN_BOX_SIDE = 1e-3, 1e-2  # pixels, as in torchvision


class EveryLevelPooling(AlignedPooling):
    """Pools each region from every level, and keeps the result from the level for the region's size.

    The result is that of `AlignedPooling` if `aligned` is True, else that of torchvision's `MultiScaleRoIAlign`.
    """

    def __init__(self, strides: Sequence[int], bins: int, aligned: bool) -> None:
        super().__init__(strides, bins)
        self.aligned = aligned

    def forward(self, features: Mapping[str, Tensor], boxes: list[Tensor], sizes: Sequence[Size]) -> Tensor:
        """Return (N, channels, bins, bins) pooled regions of one image, given the arguments of `AlignedPooling`."""
        (corners,) = boxes
        # roi_align expects the index of the image, here 0, in the column before the corners.
        indexed_corners = torch.cat([corners.new_zeros(len(corners), 1), corners], 1)
        levels = self._level_of(boxes)[:, None, None, None]
        points = -1 if self.aligned else SAMPLING_POINTS
        pooled_by_level = [
            roi_align(features[str(level)], indexed_corners, self.bins, 1 / stride, points, self.aligned)
            for level, stride in enumerate(self.strides)
        ]
        pooled = pooled_by_level[0]
        for level, level_regions in enumerate(pooled_by_level[1:], 1):
            pooled = torch.where(levels == level, level_regions, pooled)
        return pooled


class OneImageDetector(nn.Module):
    """A detector that returns the objects of one image as a table.

    Shape:
        - images: (1, 3, H, W), normalised
        - output: (N, 6), or (N, 6 + 784) if the detector predicts masks, where N is the option `most`. The columns are
          left, top, right and bottom in pixels, score, class from 0, and the flattened 28 x 28 mask of probabilities
          within the box. Rows are in descending order of the score; unused rows have a score of 0.

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
            head.box_roi_pool = EveryLevelPooling(strides, BOX_POOL_SIZE, aligned)
            if head.has_mask():
                head.mask_roi_pool = EveryLevelPooling(strides, MASK_POOL_SIZE, aligned)

    def forward(self, images: Tensor) -> Tensor:
        """Return the table of the objects in one image."""
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
        table, labels = self._make_table(class_logits.softmax(-1)[:, 1:], deltas, regions, size)
        if not self.detector.options.masks:
            return table
        corners = table[:, :4]
        masks = mean_masks([head.mask_logits(features, [corners], [size]) for head in self.cascade], [labels + 1])
        return torch.cat([table, masks[0].flatten(1)], 1)

    def _propose(self, features: list[Tensor], size: Size) -> Tensor:
        """Return the (N, 4) corners of the proposals, where N does not depend on the image; unused rows are zero."""
        network, stride = self.detector.proposals, self.detector.stages.strides[0]
        n_candidates, n_kept = network.pre_nms_top_n(), network.post_nms_top_n()
        padded_size = (features[0].shape[-2] * stride, features[0].shape[-1] * stride)
        boxes, scores, levels = [], [], []
        generator = network.anchor_generator
        for level, (objectness, corrections) in enumerate(zip(*network.head(features), strict=True)):
            # The (rows * columns * anchors per position, 4) anchors of the map, in torchvision's order. A cumulative
            # sum replaces torch.arange, because torch.export must know the length of torch.arange.
            y = (torch.ones_like(objectness[0, 0, :, 0]).cumsum(0) - 1) * (padded_size[0] // objectness.shape[-2])
            x = (torch.ones_like(objectness[0, 0, 0]).cumsum(0) - 1) * (padded_size[1] // objectness.shape[-1])
            positions = torch.stack([*torch.meshgrid(x, y, indexing="xy")], -1).view(-1, 1, 2)
            shapes = generator.generate_anchors([*generator.sizes[level]], [*generator.aspect_ratios[level]])
            anchors = (positions.repeat(1, 1, 2) + shapes).view(-1, 4)
            logits, deltas = concat_box_prediction_layers([objectness], [corrections])
            decoded = network.box_coder.decode_single(deltas, anchors)
            # Empty regions are added, since the map may have fewer than `n_candidates` anchors.
            logits = torch.cat([logits[:, 0], logits.new_full((n_candidates,), -torch.inf)])
            decoded = torch.cat([decoded, decoded.new_zeros(n_candidates, 4)])
            best = logits.topk(n_candidates).indices
            boxes.append(clip_boxes_to_image(decoded[best], size))
            scores.append(logits[best].sigmoid())
            levels.append(torch.full((n_candidates,), level))
        corners, all_scores = torch.cat(boxes), torch.cat(scores)
        usable = (corners[:, 2:] - corners[:, :2]).amin(1) >= MIN_PROPOSAL_SIDE
        best, is_kept = _nms_with_fixed_count(
            corners, all_scores, torch.cat(levels), usable, network.nms_thresh, n_kept
        )
        return corners[best] * is_kept[:, None]

    def _make_table(self, scores: Tensor, deltas: Tensor, regions: Tensor, size: Size) -> tuple[Tensor, Tensor]:
        """Return the (M, 6) table of objects without masks, and the (M,) int64 class of each row.

        `scores` are the (N, K) class probabilities of the regions, and `deltas` the (N, 4) or (N, 4 (K + 1)) box
        corrections of the last head.
        """
        last, classes = self.cascade[-1], scores.shape[1]
        boxes = last.box_coder.decode_single(deltas, regions).view(len(regions), -1, 4)
        boxes = boxes[:, 1:] if boxes.shape[1] > 1 else boxes.expand(-1, classes, -1)
        corners, box_scores = clip_boxes_to_image(boxes.reshape(-1, 4), size), scores.reshape(-1)
        labels = torch.arange(classes).repeat(len(regions))
        usable = ((corners[:, 2:] - corners[:, :2]).amin(1) >= MIN_BOX_SIDE) & (box_scores > last.score_thresh)
        best, is_kept = _nms_with_fixed_count(
            corners, box_scores, labels, usable, last.nms_thresh, last.detections_per_img
        )
        columns = (corners[best] * is_kept[:, None], (box_scores[best] * is_kept)[:, None], labels[best][:, None])
        return torch.cat([column.to(box_scores.dtype) for column in columns], 1), labels[best]


def _fix_padding(stages: PyramidBackbone) -> None:
    """Replace TensorFlow's "same" padding, which depends on the image size, with constant padding.

    Constant padding gives the same result if the sides of an image are multiples of the stride, and `PyramidBackbone`
    pads all images to such sides.
    """
    for name, layer in [*stages.named_modules()]:
        if isinstance(layer, Conv2dSame) and isinstance(layer, nn.Conv2d):
            convolution = nn.Conv2d(
                layer.in_channels,
                layer.out_channels,
                layer.kernel_size,  # type: ignore[arg-type]
                layer.stride,  # type: ignore[arg-type]
                dilation=layer.dilation,  # type: ignore[arg-type]
                groups=layer.groups,
                bias=layer.bias is not None,
            )
            convolution.weight, convolution.bias = layer.weight, layer.bias
            padding = nn.ZeroPad2d(_constant_padding(layer.kernel_size, layer.stride, layer.dilation))
            stages.set_submodule(name, nn.Sequential(padding, convolution))
        elif isinstance(layer, AvgPool2dSame) and isinstance(layer, nn.AvgPool2d):
            padding = nn.ZeroPad2d(_constant_padding(layer.kernel_size, layer.stride, (1, 1)))  # type: ignore[arg-type]
            stages.set_submodule(name, nn.Sequential(padding, nn.AvgPool2d(layer.kernel_size, layer.stride)))
        elif isinstance(layer, nn.AvgPool2d) and layer.kernel_size == layer.stride:
            layer.ceil_mode = False


def _constant_padding(
    kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, int, int, int]:
    """Return the "same" padding on the left, right, top and bottom of maps whose sides are multiples of the stride."""
    axes = zip(kernel, stride, dilation, strict=True)
    rows, columns = (max((kernel_size - 1) * gap + 1 - step, 0) for kernel_size, step, gap in axes)
    return columns // 2, columns - columns // 2, rows // 2, rows - rows // 2


def _nms_with_fixed_count(
    boxes: Tensor, scores: Tensor, groups: Tensor, usable: Tensor, max_overlap: float, count: int
) -> tuple[Tensor, Tensor]:
    """Apply non-maximum suppression within groups to the boxes marked `usable`, and return a fixed number of results.

    Return (count,) positions of boxes in descending order of the score, and (count,) bool, False for surplus positions.
    """
    candidates = usable.nonzero()[:, 0]
    # Each group is shifted by a different distance, so that boxes of different groups do not overlap.
    separated = boxes + (groups * (boxes.max() + 1))[:, None].to(boxes.dtype)
    # torch.export assumes that torchvision's nms keeps two boxes or more, so two boxes outside the image are added.
    far_boxes = boxes.new_tensor([[-2, -2, -1, -1], [-4, -4, -3, -3]])
    corners = torch.cat([separated[candidates], far_boxes])
    candidate_scores = torch.cat([scores[candidates], scores.new_zeros(2)])
    positions = torch.cat([candidates, len(boxes) + torch.arange(2)])
    kept_rows = positions[nms(corners, candidate_scores, max_overlap)]
    ones = torch.ones_like(kept_rows, dtype=scores.dtype)
    is_kept = scores.new_zeros(len(boxes) + 2).scatter(0, kept_rows, ones)[:-2]
    best_scores, best = torch.where(is_kept > 0, scores, -1.0).topk(count)
    return best, best_scores >= 0
