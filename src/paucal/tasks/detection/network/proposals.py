"""torchvision's proposal network, with a choice of the box loss and of the rule that assigns anchors to objects."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

from paucal.backbones.stage_maps import PyramidBackbone
from paucal.tasks.detection.network.options import DetectorOptions

ASPECT_RATIOS = (0.5, 1.0, 2.0)  # height / width of the anchors
FIVE_SIDES = (32, 64, 128, 256, 512)  # sides of anchors in pixels
# Minimum IoU of a positive anchor with its object, IoU below which an anchor is background, number of sampled anchors
# per image, maximum fraction of positive anchors among these, and IoU threshold of non-maximum suppression
POSITIVE_IOU, NEGATIVE_IOU, SAMPLED_ANCHORS, POSITIVE_FRACTION, NMS_IOU = 0.7, 0.3, 256, 0.5, 0.7
# Difference between predicted and true corrections at which smooth L1 becomes linear, by box loss
BETAS = {"smooth-l1": 1 / 9, "l1": 0.0}


class ObjectMatcher(Matcher):
    """torchvision's matcher, which also assigns to each object the regions that have the largest IoU with that object.

    torchvision's "low-quality matches" assign such a region to the object that the region overlaps most, which may be
    another object. This matcher assigns the region to the object for which the region is best (to the last of these
    objects, if there are several), as in Swin's code, if the IoU is at least `min_best_iou`. With
    `with_objects`, the last regions are the objects' true boxes, which are not assigned to other objects.
    """

    def __init__(
        self, positive_iou: float, negative_iou: float, min_best_iou: float, with_objects: bool = False
    ) -> None:
        super().__init__(positive_iou, negative_iou)
        self.min_best_iou, self.with_objects = min_best_iou, with_objects

    def __call__(self, match_quality_matrix: Tensor) -> Tensor:
        """Return the (N,) int64 object index of each region from an (objects, N) IoU matrix; background is negative."""
        matches = super().__call__(match_quality_matrix)
        n_proposals = match_quality_matrix.shape[1] - (len(match_quality_matrix) if self.with_objects else 0)
        overlaps = match_quality_matrix[:, :n_proposals]
        if not n_proposals:
            return matches
        for index, (row, best) in enumerate(zip(overlaps, overlaps.amax(1), strict=True)):
            is_best = (row == best) & (best >= self.min_best_iou)
            matches[:n_proposals] = torch.where(is_best, index, matches[:n_proposals])
        return matches


class ProposalHead(RPNHead):
    """torchvision's proposal layers with float32 outputs, since boxes in half precision are wrong by whole pixels."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the objectness logits and the box corrections of the anchors, each as a list of one tensor per map."""
        logits, corrections = super().forward(x)
        return [grid.float() for grid in logits], [grid.float() for grid in corrections]


class ProposalNetwork(RegionProposalNetwork):
    """torchvision's proposal network on a feature pyramid."""

    def __init__(self, stages: PyramidBackbone, options: DetectorOptions) -> None:
        strides = [*stages.strides, 2 * stages.strides[-1]]
        single_sides = tuple((options.anchor * stride,) for stride in strides)
        sides = single_sides if options.anchor_sides == "one" else (FIVE_SIDES,) * len(strides)
        anchors = AnchorGenerator(sides, (ASPECT_RATIOS,) * len(strides))
        candidates = options.candidates or options.proposals
        n_candidates = {"training": candidates, "testing": max(candidates // 2, options.most)}
        n_kept = {"training": options.proposals, "testing": max(min(options.proposals, candidates // 2), options.most)}
        super().__init__(
            anchors,
            ProposalHead(options.channels, anchors.num_anchors_per_location()[0], options.proposal_layers),
            fg_iou_thresh=POSITIVE_IOU,
            bg_iou_thresh=NEGATIVE_IOU,
            batch_size_per_image=SAMPLED_ANCHORS,
            positive_fraction=POSITIVE_FRACTION,
            pre_nms_top_n=n_candidates,
            post_nms_top_n=n_kept,
            nms_thresh=NMS_IOU,
        )
        self._beta = BETAS[options.proposal_loss]
        if options.matching != "torchvision":
            self.proposal_matcher = ObjectMatcher(POSITIVE_IOU, NEGATIVE_IOU, NEGATIVE_IOU)

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return torchvision's objectness loss, and the box loss with the chosen beta of smooth L1."""
        positive, negative = (torch.where(torch.cat(masks))[0] for masks in self.fg_bg_sampler(labels))
        sampled, targets = torch.cat([positive, negative]), torch.cat(regression_targets)
        box_loss = F.smooth_l1_loss(pred_bbox_deltas[positive], targets[positive], reduction="sum", beta=self._beta)
        object_loss = F.binary_cross_entropy_with_logits(objectness.flatten()[sampled], torch.cat(labels)[sampled])
        return object_loss, box_loss / sampled.numel()
