"""torchvision's heads that classify regions, correct their boxes and predict masks, with a choice of losses.

Each region is pooled from the pyramid level for regions of its size. The mask layers are those of He et al., ICCV 2017,
figure 4 (right): four convolutions, an upsampling by two, and a 28 x 28 mask for each class. Only the mask of the
object's class is trained.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign, clip_boxes_to_image, generalized_box_iou_loss, roi_align
from torchvision.ops.poolers import LevelMapper

from paucal.tasks.detection.network.options import BoxLoss, MaskNorm, Matching
from paucal.tasks.detection.network.proposals import ObjectMatcher

# Bins per side of a pooled region; a predicted mask has 2 * MASK_POOL_SIZE pixels per side
BOX_POOL_SIZE, MASK_POOL_SIZE = 7, 14
CANONICAL_SIDE, CANONICAL_LEVEL = 224, 4  # a region with sides of 224 pixels is pooled from the map of stride 2^4
SAMPLING_POINTS = 2  # number of sampling points per side of a bin
MASK_LAYERS = 4  # number of convolutions before the upsampling
GIOU_WEIGHT = 10.0  # weight of the GIoU loss
Targets = list[dict[str, Tensor]]


class AlignedPooling(nn.Module):
    """Pools regions without the half-pixel shift of the original RoIAlign, and with more points for larger regions.

    This is torchvision's `roi_align` with `aligned=True` and adaptive sampling, as in Swin's code. torchvision's
    `MultiScaleRoIAlign` has no such options. The strides are powers of two; each region is pooled to bins x bins.
    """

    def __init__(self, strides: Sequence[int], bins: int) -> None:
        super().__init__()
        self.strides, self.bins = tuple(strides), bins
        first, last = (round(math.log2(stride)) for stride in (strides[0], strides[-1]))
        self._level_of = LevelMapper(first, last, CANONICAL_SIDE, CANONICAL_LEVEL)

    def forward(self, features: Mapping[str, Tensor], boxes: list[Tensor], sizes: Sequence[tuple[int, int]]) -> Tensor:
        """Return the (N, channels, bins, bins) pooled regions of all images, as torchvision's pooling modules do."""
        images = torch.cat([torch.full_like(corners[:, :1], image) for image, corners in enumerate(boxes)])
        regions, levels = torch.cat([images, torch.cat(boxes)], dim=1), self._level_of(boxes)
        first_map = features["0"]
        pooled = first_map.new_zeros(len(regions), first_map.shape[1], self.bins, self.bins)
        for level, stride in enumerate(self.strides):
            level_rows = torch.where(levels == level)[0]
            level_regions = roi_align(features[str(level)], regions[level_rows], self.bins, 1 / stride, aligned=True)
            pooled[level_rows] = level_regions.to(pooled.dtype)
        return pooled


def make_pooling(strides: Sequence[int], bins: int, aligned: bool) -> nn.Module:
    """Return `AlignedPooling`, or torchvision's `MultiScaleRoIAlign` with 2 x 2 points per bin."""
    if aligned:
        return AlignedPooling(strides, bins)
    return MultiScaleRoIAlign([str(level) for level in range(len(strides))], bins, SAMPLING_POINTS)


class HeadOutput(NamedTuple):
    """Losses and predictions of a head in training."""

    losses: dict[str, Tensor]  # losses "class", "box" and, if the head has mask layers, "mask"
    regions: list[Tensor]  # (N_i, 4) corners of the sampled regions, per image
    labels: Tensor  # (N,) int64 classes of the regions of all images, 0 for the background
    logits: Tensor  # (N, K + 1) class logits, the background first
    deltas: Tensor  # (N, 4) or (N, 4 (K + 1)) predicted box corrections


class RegionHeads(RoIHeads):
    """torchvision's `RoIHeads` with the chosen box loss and matching.

    Regions that are assigned to an object are positive; the other regions are background. The layers are box pooling,
    box head and box predictor. Smooth L1 becomes linear at a difference of `beta`.
    """

    def __init__(
        self,
        *layers: Any,
        positive_iou: float,
        box_loss: BoxLoss = "smooth-l1",
        beta: float = 1 / 9,
        matching: Matching,
        **settings: Any,
    ) -> None:
        super().__init__(*layers, fg_iou_thresh=positive_iou, bg_iou_thresh=positive_iou, **settings)
        self.box_loss, self.beta = box_loss, beta if box_loss == "smooth-l1" else 0.0
        if matching == "regions":
            self.proposal_matcher = ObjectMatcher(positive_iou, positive_iou, positive_iou, with_objects=True)

    @property
    def box_weight(self) -> float:
        """Weight of the box loss."""
        return GIOU_WEIGHT if self.box_loss == "giou" else 1.0

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: Targets | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return (detections, {}) as torchvision does or, if targets are given, ([], losses)."""
        if targets is None:
            return super().forward(features, proposals, image_shapes)
        return [], self.compute_losses(features, proposals, image_shapes, targets).losses

    def compute_losses(
        self, features: Mapping[str, Tensor], proposals: list[Tensor], sizes: list[tuple[int, int]], targets: Targets
    ) -> HeadOutput:
        """Return losses and predictions for sampled proposals and true boxes, given the arguments of `forward`."""
        regions, matched, sampled_labels, box_targets = self.select_training_samples(proposals, targets)
        labels = torch.cat(sampled_labels)
        logits, deltas = self.predict(features, regions, sizes)
        box_loss = self._box_loss(select_class(deltas, labels), labels, torch.cat(box_targets), torch.cat(regions))
        losses = {"class": F.cross_entropy(logits, labels), "box": box_loss}
        if self.has_mask():
            losses["mask"] = self.mask_loss(features, regions, matched, sampled_labels, sizes, targets)
        return HeadOutput(losses, regions, labels, logits, deltas)

    def predict(
        self, features: Mapping[str, Tensor], regions: list[Tensor], sizes: list[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """Return the class logits and box corrections of regions, with the shapes in `HeadOutput`.

        Logits and corrections are float32, since boxes in half precision are wrong by whole pixels.
        """
        pooled = self.box_roi_pool(dict(features), regions, sizes)
        logits, deltas = self.box_predictor(self.box_head(pooled))
        return logits.float(), deltas.float()

    def refine(
        self, deltas: Tensor, classes: Tensor, regions: Sequence[Tensor], sizes: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """Apply this head's box corrections; return the (N_i, 4) boxes of each image, clipped to it, without gradients.

        `deltas` are (N, 4), or (N, 4 (K + 1)) with corrections for each class; `classes` are the (N,) classes to use.
        """
        boxes = self.box_coder.decode_single(select_class(deltas.detach(), classes), torch.cat(list(regions)))
        image_boxes = boxes.split([len(corners) for corners in regions])
        return [clip_boxes_to_image(corners, size) for corners, size in zip(image_boxes, sizes, strict=True)]

    def mask_logits(
        self, features: Mapping[str, Tensor], regions: list[Tensor], sizes: list[tuple[int, int]]
    ) -> Tensor:
        """Return (N, K + 1, 28, 28) mask logits for the regions of all images."""
        pooled = self.mask_roi_pool(dict(features), regions, sizes)  # type: ignore[misc]
        return self.mask_predictor(self.mask_head(pooled))  # type: ignore[misc]

    def mask_loss(
        self,
        features: Mapping[str, Tensor],
        regions: Sequence[Tensor],
        matched: Sequence[Tensor],
        labels: Sequence[Tensor],
        sizes: list[tuple[int, int]],
        targets: Sequence[Mapping[str, Tensor]],
    ) -> Tensor:
        """Return torchvision's mask loss, the mean binary cross-entropy over the mask pixels of all positive regions.

        `matched` has the (N_i,) objects of each image that its (N_i, 4) regions are assigned to, and `labels` their
        classes, 0 for the background. `targets` have "masks" (M_i, H, W) and "labels" (M_i,) from 1.
        """
        is_positive = [image_labels > 0 for image_labels in labels]
        positive_regions = [corners[rows] for corners, rows in zip(regions, is_positive, strict=True)]
        positive_objects = [objects[rows] for objects, rows in zip(matched, is_positive, strict=True)]
        logits = self.mask_logits(features, positive_regions, sizes)
        masks, classes = [target["masks"] for target in targets], [target["labels"] for target in targets]
        return maskrcnn_loss(logits, positive_regions, masks, classes, positive_objects)

    def _box_loss(self, deltas: Tensor, labels: Tensor, targets: Tensor, regions: Tensor) -> Tensor:
        """Return the loss of the (N, 4) corrections, summed over the positive regions and divided by N."""
        positive = labels > 0
        if self.box_loss == "giou":
            predicted_boxes, target_boxes = (
                self.box_coder.decode_single(offsets[positive], regions[positive]) for offsets in (deltas, targets)
            )
            loss = generalized_box_iou_loss(predicted_boxes, target_boxes, reduction="sum")
        else:
            loss = F.smooth_l1_loss(deltas[positive], targets[positive], reduction="sum", beta=self.beta)
        return loss / max(labels.numel(), 1)


class SharedPredictor(nn.Module):
    """Predicts the class of a region, and one box correction that is shared by all classes."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.classify, self.correct = nn.Linear(dim, classes + 1), nn.Linear(dim, 4)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (N, K + 1) logits and (N, 4) box corrections of regions with (N, dim) features."""
        return self.classify(regions), self.correct(regions)


def select_class(deltas: Tensor, classes: Tensor) -> Tensor:
    """Return the (N, 4) box corrections for the class (N,) of each region, from (N, 4) or (N, 4 (K + 1)) corrections.

    Example:
        >>> select_class(torch.arange(16.0).view(2, 8), torch.tensor([1, 0])).tolist()
        [[4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    """
    if deltas.shape[1] == 4:
        return deltas
    return deltas.view(len(deltas), -1, 4)[torch.arange(len(deltas), device=deltas.device), classes]


def mask_layers(channels: int, classes: int, norm: MaskNorm = "none") -> tuple[nn.Module, nn.Module]:
    """Return the convolutions of a mask head, and the predictor of one mask for each class and for the background."""
    norm_layer = nn.BatchNorm2d if norm == "batch" else None
    layers = MaskRCNNHeads(channels, [channels] * MASK_LAYERS, 1, norm_layer)
    return layers, MaskRCNNPredictor(channels, channels, classes + 1)


def mean_masks(head_logits: Sequence[Tensor], labels: Sequence[Tensor]) -> list[Tensor]:
    """Return the (N_i, 1, 28, 28) mask probabilities of each image's objects, averaged over several heads.

    Each head has (N, K + 1, 28, 28) mask logits; `labels` are the (N_i,) classes of the objects per image, from 1.
    """
    probabilities = torch.stack([logits.sigmoid() for logits in head_logits]).mean(0)
    all_labels = torch.cat(list(labels))
    class_masks = probabilities[torch.arange(len(all_labels), device=all_labels.device), all_labels][:, None]
    return list(class_masks.split([len(image_labels) for image_labels in labels]))
