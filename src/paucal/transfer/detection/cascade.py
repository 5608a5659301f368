"""Cascade R-CNN's heads, which torchvision lacks: three in a row, each stricter about what is a hit.

Cai and Vasconcelos, CVPR 2018, section 4; thresholds, weights of losses and of box targets as in the reference
programs. Boxes are refined by each head for the next, without a gradient between them.

With masks it is Cascade Mask R-CNN (Cai and Vasconcelos, TPAMI 2021, section 5). Of the ways that the paper compares,
the one with layers for masks in each of the three heads is taken (figure 6d), as in the detectors that Swin
Transformers are published with: each head's masks learn from the regions that count as hits for it, with the weight of
its other losses, and in predictions the three heads' masks of the last boxes are averaged, as probabilities are.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import MultiScaleRoIAlign, box_iou, clip_boxes_to_image

from paucal.transfer.detection.masks.head import mask_logits, mask_loss, mean_masks

IOUS = (0.5, 0.6, 0.7)
BOX_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
LOSS_WEIGHTS = (1.0, 0.5, 0.25)
SAME = 1 - 1e-6  # overlap from which on a region is the object's own box
Targets = list[dict[str, Tensor]]


class CascadeHeads(nn.Module):
    """Three heads that classify and refine regions one after the other.

    A box is refined alike for all classes. In training each head learns from what the one before made of its regions,
    the objects' own boxes added. In predictions the probabilities of the three are averaged, and the boxes are the last
    one's.

    Args:
        pool: reads the regions from the maps; all heads share it, as it learns nothing.
        make_head: makes the layers between the cells of a region and `dim` numbers; called once per head.
        dim: of these numbers.
        classes: number of classes of objects.
        sampling: regions per image that learn, and the share of hits among them.
        answers: the least score, the overlap above which two boxes are one, and the number of detections per image.
        make_masks: makes what reads regions for masks, and the layers of a mask head; called once per head. None for no
            masks.
    """

    def __init__(
        self,
        pool: MultiScaleRoIAlign,
        make_head: Callable[[], nn.Module],
        dim: int,
        classes: int,
        sampling: tuple[int, float],
        answers: tuple[float, float, int],
        make_masks: Callable[[], Sequence[nn.Module]] | None = None,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.masks = make_masks is not None
        make_masks = make_masks or (lambda: ())
        self.stages = nn.ModuleList(
            RoIHeads(pool, make_head(), _Predictor(dim, classes), iou, iou, *sampling, weights, *answers, *make_masks())
            for iou, weights in zip(IOUS, BOX_WEIGHTS, strict=True)
        )

    def loss_weights(self) -> dict[str, float]:
        """Return the weight of each loss by its name."""
        kinds = ("class", "box", "mask") if self.masks else ("class", "box")
        return {f"{kind}_{n}": weight for n, weight in enumerate(LOSS_WEIGHTS, 1) for kind in kinds}

    def forward(
        self,
        features: Mapping[str, Tensor],
        proposals: list[Tensor],
        sizes: list[tuple[int, int]],
        targets: Targets | None = None,
    ) -> tuple[Targets, dict[str, Tensor]]:
        """Return the detections and, in training, the losses instead; arguments as those of torchvision's heads."""
        if targets is not None:
            return [], self._losses(features, proposals, sizes, targets)
        shares, stage, deltas = [], None, None
        for number, stage in enumerate(self.stages):
            logits, deltas = self._judge(stage, features, proposals, sizes)
            shares.append(logits.softmax(-1))
            if number + 1 < len(self.stages):
                proposals = refined(stage, deltas, proposals, sizes)
        assert isinstance(stage, RoIHeads)
        assert deltas is not None
        # torchvision takes the softmax itself, and one box per class.
        mean = torch.stack(shares).mean(0).clamp_min(1e-12).log()
        boxes, scores, labels = stage.postprocess_detections(mean, deltas.repeat(1, self.classes + 1), proposals, sizes)
        found = {"boxes": boxes, "scores": scores, "labels": labels}
        if self.masks:
            heads = [mask_logits(one, features, boxes, sizes) for one in self.stages]  # type: ignore[arg-type]
            found["masks"] = mean_masks(heads, labels)
        return [dict(zip(found, one, strict=True)) for one in zip(*found.values(), strict=True)], {}

    def _losses(
        self, features: Mapping[str, Tensor], proposals: list[Tensor], sizes: list[tuple[int, int]], targets: Targets
    ) -> dict[str, Tensor]:
        losses = {}
        for number, stage in enumerate(self.stages, 1):
            assert isinstance(stage, RoIHeads)
            regions, matched, labels, wanted = stage.select_training_samples(proposals, targets)
            assert labels is not None
            logits, deltas = self._judge(stage, features, regions, sizes)
            losses[f"class_{number}"], losses[f"box_{number}"] = region_losses(
                logits, deltas, torch.cat(labels), torch.cat(wanted)
            )
            if self.masks:
                losses[f"mask_{number}"] = mask_loss(stage, features, regions, matched, labels, sizes, targets)
            proposals = [
                boxes[_found(region, target["boxes"])]
                for boxes, region, target in zip(refined(stage, deltas, regions, sizes), regions, targets, strict=True)
            ]
        return losses

    def _judge(
        self,
        stage: nn.Module,
        features: Mapping[str, Tensor],
        regions: list[Tensor],
        sizes: list[tuple[int, int]],
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(stage, RoIHeads)
        cells = stage.box_roi_pool(dict(features), regions, sizes)
        return stage.box_predictor(stage.box_head(cells))


class _Predictor(nn.Module):
    """The class of a region, and one correction of its box."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.classify, self.correct = nn.Linear(dim, classes + 1), nn.Linear(dim, 4)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        return self.classify(regions), self.correct(regions)


def region_losses(logits: Tensor, deltas: Tensor, labels: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses of one head: cross-entropy, and smooth L1 of the hits over the number of all regions.

    Args:
        logits: (N, K + 1), the background first.
        deltas: (N, 4), corrections of the boxes, alike for all classes.
        labels: (N,) int64, 0 for the background.
        wanted: (N, 4), the corrections that would be right.
    """
    hits = labels > 0
    box = F.smooth_l1_loss(deltas[hits], wanted[hits], reduction="sum") / max(labels.numel(), 1)
    return F.cross_entropy(logits, labels), box


def refined(
    stage: nn.Module,
    deltas: Tensor,
    regions: Sequence[Tensor],
    sizes: Sequence[tuple[int, int]],
) -> list[Tensor]:
    """Return the regions as a head has corrected them, within their images and without a gradient.

    Args:
        stage: the head.
        deltas: (N, 4), its corrections of the regions of all images.
        regions: (N_i, 4) corners per image.
        sizes: (height, width) of each image.
    """
    assert isinstance(stage, RoIHeads)
    boxes = stage.box_coder.decode_single(deltas.detach(), torch.cat(list(regions)))
    split = boxes.split([len(one) for one in regions])
    return [clip_boxes_to_image(one, size) for one, size in zip(split, sizes, strict=True)]


def _found(regions: Tensor, objects: Tensor) -> Tensor:
    """Return which regions were found, and not put among them as the box of an object; the next head gets its own."""
    if not len(objects):
        return torch.ones(len(regions), dtype=torch.bool, device=regions.device)
    return box_iou(regions, objects).amax(1) < SAME
