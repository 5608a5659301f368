"""torchvision's heads that judge regions, with a choice of losses and of which regions learn an object."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import clip_boxes_to_image, generalized_box_iou_loss

from paucal.tasks.detection.instance_masks.head import mask_loss
from paucal.tasks.detection.options import BoxLoss, Matching
from paucal.tasks.detection.proposals import ObjectMatcher

GIOU_WEIGHT = 10.0
Targets = list[dict[str, Tensor]]


class Judged(NamedTuple):
    """What a head has learned from, and what it said.

    Attributes:
        losses: Losses by name: "class", "box" and, of a head with layers for masks, "mask".
        regions: (N_i, 4) corners per image, of the regions that were drawn.
        labels: (N,) int64 of all images, 0 for the background.
        logits: (N, K + 1), the background first.
        deltas: (N, 4) or (N, 4 (K + 1)), corrections of the boxes.
    """

    losses: dict[str, Tensor]
    regions: list[Tensor]
    labels: Tensor
    logits: Tensor
    deltas: Tensor


class RegionHeads(RoIHeads):
    """torchvision's heads, which learn by the chosen losses.

    Args:
        parts: What torchvision's `RoIHeads` takes.
        hit: Overlap from which on a region is a hit.
        box_loss: Loss of the boxes of hits.
        beta: Difference of corrections at which smooth L1 becomes linear.
        matching: Which regions learn an object; see `DetectorOptions`.
    """

    def __init__(
        self, *parts: Any, hit: float, box_loss: BoxLoss = "smooth-l1", beta: float = 1 / 9, matching: Matching
    ) -> None:
        super().__init__(*parts)
        self.box_loss, self.beta = box_loss, beta if box_loss == "smooth-l1" else 0.0
        if matching == "regions":
            self.proposal_matcher = ObjectMatcher(hit, hit, hit, with_objects=True)

    @property
    def box_weight(self) -> float:
        """Weight of the loss of boxes."""
        return GIOU_WEIGHT if self.box_loss == "giou" else 1.0

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: Targets | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return torchvision's detections and, in training, the losses instead."""
        if targets is None:
            return super().forward(features, proposals, image_shapes)
        return [], self.learn(features, proposals, image_shapes, targets).losses

    def learn(
        self,
        features: Mapping[str, Tensor],
        proposals: list[Tensor],
        sizes: list[tuple[int, int]],
        targets: Targets,
    ) -> Judged:
        """Return the losses of some of the proposals and of the objects' own boxes; arguments as in `forward`."""
        regions, matched, drawn, wanted = self.select_training_samples(proposals, targets)
        labels = torch.cat(drawn)
        logits, deltas = self.judge(features, regions, sizes)
        chosen = of_class(deltas, labels)
        box = self._box_loss(chosen, labels, torch.cat(wanted), torch.cat(regions))
        losses = {"class": F.cross_entropy(logits, labels), "box": box}
        if self.has_mask():
            losses["mask"] = mask_loss(self, features, regions, matched, drawn, sizes, targets)
        return Judged(losses, regions, labels, logits, deltas)

    def judge(
        self, features: Mapping[str, Tensor], regions: list[Tensor], sizes: list[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """Return logits and corrections of regions as float32: boxes in half precision are pixels off."""
        cells = self.box_roi_pool(dict(features), regions, sizes)
        logits, deltas = self.box_predictor(self.box_head(cells))
        return logits.float(), deltas.float()

    def refine(
        self, deltas: Tensor, classes: Tensor, regions: Sequence[Tensor], sizes: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """Return the regions as this head has corrected them, within their images and without a gradient.

        Args:
            deltas: (N, 4) or (N, 4 (K + 1)) corrections of the regions of all images.
            classes: (N,) int64, whose corrections are taken.
            regions: (N_i, 4) corners per image.
            sizes: (height, width) of each image.
        """
        boxes = self.box_coder.decode_single(of_class(deltas.detach(), classes), torch.cat(list(regions)))
        split = boxes.split([len(one) for one in regions])
        return [clip_boxes_to_image(one, size) for one, size in zip(split, sizes, strict=True)]

    def _box_loss(self, deltas: Tensor, labels: Tensor, wanted: Tensor, regions: Tensor) -> Tensor:
        """Return the loss of the corrections (N, 4) of hits over the number of all regions."""
        hits = labels > 0
        if self.box_loss == "giou":
            ours, theirs = (self.box_coder.decode_single(one[hits], regions[hits]) for one in (deltas, wanted))
            loss = generalized_box_iou_loss(ours, theirs, reduction="sum")
        else:
            loss = F.smooth_l1_loss(deltas[hits], wanted[hits], reduction="sum", beta=self.beta)
        return loss / max(labels.numel(), 1)


class SharedPredictor(nn.Module):
    """The class of a region, and one correction of its box for all classes.

    Args:
        dim: Numbers that describe a region.
        classes: Number of classes of objects.
    """

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.classify, self.correct = nn.Linear(dim, classes + 1), nn.Linear(dim, 4)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Return (N, K + 1) logits and (N, 4) corrections."""
        return self.classify(regions), self.correct(regions)


def of_class(deltas: Tensor, classes: Tensor) -> Tensor:
    """Return the (N, 4) corrections that belong to classes: those of each region's own, or those of all.

    Args:
        deltas: (N, 4), or (N, 4 (K + 1)), the background first.
        classes: (N,) int64.

    Example:
        >>> of_class(torch.arange(16.0).view(2, 8), torch.tensor([1, 0])).tolist()
        [[4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    """
    if deltas.shape[1] == 4:
        return deltas
    return deltas.view(len(deltas), -1, 4)[torch.arange(len(deltas), device=deltas.device), classes]
