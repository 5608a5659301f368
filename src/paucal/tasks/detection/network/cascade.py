"""The heads of Cascade R-CNN, which torchvision does not have: three heads in sequence, with rising IoU thresholds.

This is the detector of Cai and Vasconcelos, CVPR 2018, section 4, with the IoU thresholds, loss weights and weights of
box targets of the reference code. Each head refines the boxes for the next head, and no gradient flows between heads.

With masks, the detector is Cascade Mask R-CNN (Cai and Vasconcelos, TPAMI 2021, section 5), in the variant with mask
layers in each of the three heads (figure 6d), as in the published detectors with Swin Transformers. The mask layers of
a head are trained on the regions that reach the head's IoU threshold, with the head's loss weight. In inference, all
three heads predict masks within the final boxes, and the mask probabilities are averaged.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn
from torchvision.ops import box_iou

from paucal.tasks.detection.network.options import CascadeAverage
from paucal.tasks.detection.network.region_heads import RegionHeads, Targets, mean_masks

# Per head: minimum IoU of a positive region with its object, factors on the x, y, width and height corrections, and
# weight of the losses
IOU_THRESHOLDS = (0.5, 0.6, 0.7)
BOX_TARGET_WEIGHTS = ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0))
LOSS_WEIGHTS = (1.0, 0.5, 0.25)
SAME_BOX_IOU = 1 - 1e-6  # minimum IoU at which a region counts as identical to a true box


class CascadeHeads(nn.Module):
    """Three heads that classify and refine regions of K classes (without the background) one after the other.

    In training, each head learns from the regions that the previous head has refined, and from the true boxes. In
    inference, the class scores are averaged over the three heads, and the boxes are those of the last head. If a head
    predicts one box per class, the next head gets the box of the true class in training; for background regions and in
    inference, the next head gets the box of the most probable class. `make_head` builds a head, given its IoU threshold
    and the weights of its box targets.
    """

    def __init__(
        self,
        make_head: Callable[[float, tuple[float, ...]], RegionHeads],
        classes: int,
        average: CascadeAverage = "probabilities",
    ) -> None:
        super().__init__()
        self.classes, self.average = classes, average
        self.stages = nn.ModuleList(map(make_head, IOU_THRESHOLDS, BOX_TARGET_WEIGHTS))

    @property
    def heads(self) -> list[RegionHeads]:
        """The three heads in order."""
        return [stage for stage in self.stages if isinstance(stage, RegionHeads)]

    def loss_weights(self) -> dict[str, float]:
        """Return loss weights by the name of the loss, such as "box_2" for the box loss of the second head."""
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
        """Return (detections, {}) or, if targets are given, ([], losses); the arguments are those of `RoIHeads`."""
        if targets is not None:
            losses: dict[str, Tensor] = {}
            for number, head in enumerate(self.heads, 1):
                output = head.compute_losses(features, proposals, sizes, targets)
                losses |= {f"{name}_{number}": value for name, value in output.losses.items()}
                classes = torch.where(output.labels > 0, output.labels, likeliest_class(output.logits))
                refined = head.refine(output.deltas, classes, output.regions, sizes)
                # Regions that are true boxes are removed, since the next head adds the true boxes itself.
                proposals = [
                    boxes[box_iou(regions, target["boxes"]).amax(1) < SAME_BOX_IOU] if len(target["boxes"]) else boxes
                    for boxes, regions, target in zip(refined, output.regions, targets, strict=True)
                ]
            return [], losses
        logits, deltas = self.heads[0].predict(features, proposals, sizes)
        all_logits = [logits]
        for previous, head in pairwise(self.heads):
            proposals = previous.refine(deltas, likeliest_class(logits), proposals, sizes)
            logits, deltas = head.predict(features, proposals, sizes)
            all_logits.append(logits)
        last = self.heads[-1]
        # torchvision expects one box correction per class.
        class_deltas = deltas if deltas.shape[1] > 4 else deltas.repeat(1, self.classes + 1)
        boxes, scores, labels = last.postprocess_detections(
            self.mean_logits(all_logits), class_deltas, proposals, sizes
        )
        fields = {"boxes": boxes, "scores": scores, "labels": labels}
        if last.has_mask():
            fields["masks"] = mean_masks([head.mask_logits(features, boxes, sizes) for head in self.heads], labels)
        return [dict(zip(fields, image_fields, strict=True)) for image_fields in zip(*fields.values(), strict=True)], {}

    def mean_logits(self, logits: list[Tensor]) -> Tensor:
        """Return the (N, K + 1) mean of the heads' logits or, for "probabilities", the log of their mean softmax."""
        if self.average == "logits":
            return torch.stack(logits).mean(0)
        return torch.stack([head_logits.softmax(-1) for head_logits in logits]).mean(0).clamp_min(1e-12).log()


def likeliest_class(logits: Tensor) -> Tensor:
    """Return the likeliest object class, (N,) int64, from (N, K + 1) logits in which the background comes first."""
    return logits[:, 1:].argmax(1) + 1
