"""Cascade R-CNN's heads, which torchvision lacks: three in a row, each stricter about what is a hit.

Cai and Vasconcelos, CVPR 2018, section 4; thresholds, weights of losses and of box targets as in the reference
programs. Boxes are refined by each head for the next, without a gradient between them.

With masks it is Cascade Mask R-CNN (Cai and Vasconcelos, TPAMI 2021, section 5). Of the ways that the paper compares,
the one with layers for masks in each of the three heads is taken (figure 6d), as in the detectors that Swin
Transformers are published with: each head's masks learn from the regions that count as hits for it, with the weight of
its other losses, and in predictions the three heads' masks of the last boxes are averaged, as probabilities are.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from paucal.tasks.detection.instance_masks.head import mask_logits, mean_masks
from paucal.tasks.detection.options import CascadeAverage
from paucal.tasks.detection.region_heads import RegionHeads, Targets

IOUS = (0.5, 0.6, 0.7)
BOX_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
LOSS_WEIGHTS = (1.0, 0.5, 0.25)
SAME = 1 - 1e-6  # overlap from which on a region is the object's own box


class CascadeHeads(nn.Module):
    """Three heads that classify and refine regions one after the other.

    In training each head learns from what the one before made of its regions, the objects' own boxes added. In
    predictions the probabilities or the logits of the three are averaged, and the boxes are the last one's. Where boxes
    are corrected for each class, the next head gets the box of an object's class, or of the likeliest class.

    Args:
        make_head: Makes a head for a threshold of overlap and weights of its box targets.
        classes: Number of classes of objects.
        average: What is averaged.
    """

    def __init__(
        self,
        make_head: Callable[[float, tuple[float, ...]], RegionHeads],
        classes: int,
        average: CascadeAverage = "probabilities",
    ) -> None:
        super().__init__()
        self.classes, self.average = classes, average
        self.stages = nn.ModuleList(map(make_head, IOUS, BOX_WEIGHTS))

    @property
    def heads(self) -> list[RegionHeads]:
        """The three heads."""
        return [one for one in self.stages if isinstance(one, RegionHeads)]

    def loss_weights(self) -> dict[str, float]:
        """Return the weight of each loss by its name."""
        names = ("class", "box", "mask") if self.heads[0].has_mask() else ("class", "box")
        return {
            f"{name}_{number}": weight * (head.box_weight if name == "box" else 1.0)
            for number, (weight, head) in enumerate(zip(LOSS_WEIGHTS, self.heads, strict=True), 1)
            for name in names
        }

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
        logits, deltas = self.heads[0].judge(features, proposals, sizes)
        said = [logits]
        for before, head in pairwise(self.heads):
            proposals = before.refine(deltas, likeliest(logits), proposals, sizes)
            logits, deltas = head.judge(features, proposals, sizes)
            said.append(logits)
        last = self.heads[-1]
        every = deltas if deltas.shape[1] > 4 else deltas.repeat(1, self.classes + 1)  # torchvision's: one per class
        boxes, scores, labels = last.postprocess_detections(self._mean(said), every, proposals, sizes)
        found = {"boxes": boxes, "scores": scores, "labels": labels}
        if last.has_mask():
            found["masks"] = mean_masks([mask_logits(one, features, boxes, sizes) for one in self.heads], labels)
        return [dict(zip(found, one, strict=True)) for one in zip(*found.values(), strict=True)], {}

    def _mean(self, logits: list[Tensor]) -> Tensor:
        """Return logits whose softmax is the answer of all heads: torchvision takes the softmax itself."""
        if self.average == "logits":
            return torch.stack(logits).mean(0)
        return torch.stack([one.softmax(-1) for one in logits]).mean(0).clamp_min(1e-12).log()

    def _losses(
        self, features: Mapping[str, Tensor], proposals: list[Tensor], sizes: list[tuple[int, int]], targets: Targets
    ) -> dict[str, Tensor]:
        losses = {}
        for number, head in enumerate(self.heads, 1):
            judged = head.learn(features, proposals, sizes, targets)
            losses |= {f"{name}_{number}": value for name, value in judged.losses.items()}
            classes = torch.where(judged.labels > 0, judged.labels, likeliest(judged.logits))
            proposals = [
                boxes[_found(region, target["boxes"])]
                for boxes, region, target in zip(
                    head.refine(judged.deltas, classes, judged.regions, sizes), judged.regions, targets, strict=True
                )
            ]
        return losses


def likeliest(logits: Tensor) -> Tensor:
    """Return (N,) int64, the likeliest class of objects of (N, K + 1) logits whose first is the background."""
    return logits[:, 1:].argmax(1) + 1


def _found(regions: Tensor, objects: Tensor) -> Tensor:
    """Return which regions were found, and not put among them as the box of an object; the next head gets its own."""
    if not len(objects):
        return torch.ones(len(regions), dtype=torch.bool, device=regions.device)
    return box_iou(regions, objects).amax(1) < SAME
