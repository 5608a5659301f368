"""torchvision's heads that classify regions, correct their boxes and predict masks, with a choice of losses.

Regions are pooled from the pyramid level that suits their size. The mask layers are those of He et al., ICCV
2017, figure 4 (right): four convolutions, an upsampling by two, and a mask of 28 cells per side for each class.
Only the mask of the object's class is trained.
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

BOX_CELLS, MASK_CELLS = 7, 14  # per side of a region; predicted masks have twice as many
USUAL_SIDE, USUAL_LEVEL = 224, 4  # a region of 224 pixels is read at a stride of 2^4
POINTS = 2  # per side of a cell
MASK_LAYERS = 4
GIOU_WEIGHT = 10.0
Targets = list[dict[str, Tensor]]


class AlignedPooling(nn.Module):
    """Reads regions without a shift of half a cell; a cell is read at as many points as it covers cells of the map.

    These are `aligned` and the adaptive sampling of the published code, which torchvision's `MultiScaleRoIAlign`
    does not offer.

    Args:
        strides: Stride of each map in pixels; growing powers of two.
        cells: Cells per side of a region.
    """

    def __init__(self, strides: Sequence[int], cells: int) -> None:
        super().__init__()
        self.strides, self.cells = tuple(strides), cells
        first, last = (round(math.log2(stride)) for stride in (strides[0], strides[-1]))
        self._level_of = LevelMapper(first, last, USUAL_SIDE, USUAL_LEVEL)

    def forward(self, features: Mapping[str, Tensor], boxes: list[Tensor], sizes: Sequence[tuple[int, int]]) -> Tensor:
        """Return (regions, channels, cells, cells) of all images; arguments as in torchvision's pooling.

        Args:
            features: (B, channels, H, W) maps by their number.
            boxes: (N_i, 4) corners in pixels per image.
            sizes: Unused, since the strides are known.
        """
        images = torch.cat([torch.full_like(corners[:, :1], image) for image, corners in enumerate(boxes)])
        regions, levels = torch.cat([images, torch.cat(boxes)], dim=1), self._level_of(boxes)
        first = features["0"]
        pooled = first.new_zeros(len(regions), first.shape[1], self.cells, self.cells)
        for level, stride in enumerate(self.strides):
            level_rows = torch.where(levels == level)[0]
            level_regions = roi_align(features[str(level)], regions[level_rows], self.cells, 1 / stride, aligned=True)
            pooled[level_rows] = level_regions.to(pooled.dtype)
        return pooled


def make_pooling(strides: Sequence[int], cells: int, aligned: bool) -> nn.Module:
    """Return aligned pooling, or torchvision's with 2x2 points per cell."""
    if aligned:
        return AlignedPooling(strides, cells)
    return MultiScaleRoIAlign([str(level) for level in range(len(strides))], cells, POINTS)


class HeadOutput(NamedTuple):
    """Losses and predictions of a head in training.

    Attributes:
        losses: Losses by name: "class", "box" and, with mask layers, "mask".
        regions: (N_i, 4) corners per image of the sampled regions.
        labels: (N,) int64 of all images, 0 for the background.
        logits: (N, K + 1), the background first.
        deltas: (N, 4) or (N, 4 (K + 1)) corrections of the boxes.
    """

    losses: dict[str, Tensor]
    regions: list[Tensor]
    labels: Tensor
    logits: Tensor
    deltas: Tensor


class RegionHeads(RoIHeads):
    """torchvision's heads with the chosen losses.

    Args:
        layers: Pooling, head and predictor of boxes.
        hit: Smallest overlap at which a region is a hit.
        beta: Difference of corrections at which smooth L1 becomes linear.
        matching: Regions that are assigned to an object; see `DetectorOptions`.
        settings: Further arguments of torchvision's `RoIHeads`.
    """

    def __init__(
        self,
        *layers: Any,
        hit: float,
        box_loss: BoxLoss = "smooth-l1",
        beta: float = 1 / 9,
        matching: Matching,
        **settings: Any,
    ) -> None:
        super().__init__(*layers, fg_iou_thresh=hit, bg_iou_thresh=hit, **settings)
        self.box_loss, self.beta = box_loss, beta if box_loss == "smooth-l1" else 0.0
        if matching == "regions":
            self.proposal_matcher = ObjectMatcher(hit, hit, hit, with_objects=True)

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
        """Return torchvision's detections or, given targets, the losses."""
        if targets is None:
            return super().forward(features, proposals, image_shapes)
        return [], self.compute_losses(features, proposals, image_shapes, targets).losses

    def compute_losses(
        self, features: Mapping[str, Tensor], proposals: list[Tensor], sizes: list[tuple[int, int]], targets: Targets
    ) -> HeadOutput:
        """Return the losses of sampled proposals and of the objects' own boxes; arguments as in `forward`."""
        regions, matched, sampled_labels, box_targets = self.select_training_samples(proposals, targets)
        labels = torch.cat(sampled_labels)
        logits, deltas = self.predict(features, regions, sizes)
        box = self._box_loss(select_class(deltas, labels), labels, torch.cat(box_targets), torch.cat(regions))
        losses = {"class": F.cross_entropy(logits, labels), "box": box}
        if self.has_mask():
            losses["mask"] = self.mask_loss(features, regions, matched, sampled_labels, sizes, targets)
        return HeadOutput(losses, regions, labels, logits, deltas)

    def predict(
        self, features: Mapping[str, Tensor], regions: list[Tensor], sizes: list[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """Return logits and corrections of regions in float32, since boxes in half precision are off by pixels."""
        cells = self.box_roi_pool(dict(features), regions, sizes)
        logits, deltas = self.box_predictor(self.box_head(cells))
        return logits.float(), deltas.float()

    def refine(
        self, deltas: Tensor, classes: Tensor, regions: Sequence[Tensor], sizes: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """Return the regions with this head's corrections, cut at the edges of their images, without a gradient.

        Args:
            deltas: (N, 4) or (N, 4 (K + 1)) corrections of the regions of all images.
            classes: (N,) int64, class whose correction each region takes.
            regions: (N_i, 4) corners per image.
            sizes: (height, width) of each image.
        """
        boxes = self.box_coder.decode_single(select_class(deltas.detach(), classes), torch.cat(list(regions)))
        split = boxes.split([len(corners) for corners in regions])
        return [clip_boxes_to_image(corners, size) for corners, size in zip(split, sizes, strict=True)]

    def mask_logits(
        self, features: Mapping[str, Tensor], regions: list[Tensor], sizes: list[tuple[int, int]]
    ) -> Tensor:
        """Return (N, K + 1, 28, 28) logits of the masks of the regions of all images."""
        cells = self.mask_roi_pool(dict(features), regions, sizes)  # type: ignore[misc]
        return self.mask_predictor(self.mask_head(cells))  # type: ignore[misc]

    def mask_loss(
        self,
        features: Mapping[str, Tensor],
        regions: Sequence[Tensor],
        matched: Sequence[Tensor],
        labels: Sequence[Tensor],
        sizes: list[tuple[int, int]],
        targets: Sequence[Mapping[str, Tensor]],
    ) -> Tensor:
        """Return torchvision's mask loss of the hits: the mean cross-entropy of their cells.

        Args:
            features: Maps by name.
            regions: (N_i, 4) corners per image.
            matched: (N_i,) int64 per image, the object of each region.
            labels: (N_i,) int64 per image, 0 for the background.
            sizes: (height, width) of each image.
            targets: "masks" (M_i, H, W) and "labels" (M_i,) from 1, per image.
        """
        hits = [image_labels > 0 for image_labels in labels]
        hit_regions = [corners[hit] for corners, hit in zip(regions, hits, strict=True)]
        hit_objects = [objects[hit] for objects, hit in zip(matched, hits, strict=True)]
        logits = self.mask_logits(features, hit_regions, sizes)
        masks, classes = [target["masks"] for target in targets], [target["labels"] for target in targets]
        return maskrcnn_loss(logits, hit_regions, masks, classes, hit_objects)

    def _box_loss(self, deltas: Tensor, labels: Tensor, targets: Tensor, regions: Tensor) -> Tensor:
        """Return the loss of the (N, 4) corrections of hits, divided by the number of all regions."""
        hits = labels > 0
        if self.box_loss == "giou":
            predicted_boxes, target_boxes = (
                self.box_coder.decode_single(offsets[hits], regions[hits]) for offsets in (deltas, targets)
            )
            loss = generalized_box_iou_loss(predicted_boxes, target_boxes, reduction="sum")
        else:
            loss = F.smooth_l1_loss(deltas[hits], targets[hits], reduction="sum", beta=self.beta)
        return loss / max(labels.numel(), 1)


class SharedPredictor(nn.Module):
    """The class of a region, and one correction of its box for all classes."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.classify, self.correct = nn.Linear(dim, classes + 1), nn.Linear(dim, 4)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (N, K + 1) logits and (N, 4) corrections."""
        return self.classify(regions), self.correct(regions)


def select_class(deltas: Tensor, classes: Tensor) -> Tensor:
    """Return the (N, 4) corrections of each region's class.

    Args:
        deltas: (N, 4) for all classes, or (N, 4 (K + 1)), the background first.
        classes: (N,) int64.

    Example:
        >>> select_class(torch.arange(16.0).view(2, 8), torch.tensor([1, 0])).tolist()
        [[4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    """
    if deltas.shape[1] == 4:
        return deltas
    return deltas.view(len(deltas), -1, 4)[torch.arange(len(deltas), device=deltas.device), classes]


def mask_layers(channels: int, classes: int, norm: MaskNorm = "none") -> tuple[nn.Module, nn.Module]:
    """Return the layers between the cells of a region and its masks, one per class and one for the background.

    Args:
        channels: Channels of the pyramid and of all layers; 256 as published.
        classes: Number of classes of objects.
        norm: Norm after each convolution.
    """
    norm_layer = nn.BatchNorm2d if norm == "batch" else None
    layers = MaskRCNNHeads(channels, [channels] * MASK_LAYERS, 1, norm_layer)
    return layers, MaskRCNNPredictor(channels, channels, classes + 1)


def mean_masks(stages: Sequence[Tensor], labels: Sequence[Tensor]) -> list[Tensor]:
    """Return the (N_i, 1, 28, 28) mask probabilities of each image's objects, averaged over several heads.

    Each head has (N, K + 1, 28, 28) logits; labels are (N_i,) from 1.
    """
    shares = torch.stack([logits.sigmoid() for logits in stages]).mean(0)
    all_labels = torch.cat(list(labels))
    class_masks = shares[torch.arange(len(all_labels), device=all_labels.device), all_labels][:, None]
    return list(class_masks.split([len(image_labels) for image_labels in labels]))
