"""The proposal network: torchvision's, with a choice of losses and of the anchors that learn an object."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

from paucal.backbones.stage_maps import StageMaps
from paucal.tasks.detection.network.options import DetectorOptions

RATIOS = (0.5, 1.0, 2.0)
FIVE_SIDES = (32, 64, 128, 256, 512)  # pixels
HIT, MISS, SAMPLES, POSITIVE_SHARE, NMS = 0.7, 0.3, 256, 0.5, 0.7
BETAS = {"smooth-l1": 1 / 9, "l1": 0.0}  # difference at which smooth L1 becomes linear


class ObjectMatcher(Matcher):
    """torchvision's matcher, which also assigns to each object the regions with the largest overlap with it.

    Differs from torchvision's own "low-quality matches", which assign such a region to the object that it overlaps
    most; this may be another object. Here it learns the object that it was chosen for (the last of several), as in the
    published code.

    Args:
        hit: Smallest overlap at which a region is assigned to an object.
        miss: Overlap below which a region is background.
        least: Smallest overlap at which an object gets the regions that overlap it most.
        with_objects: Whether the last regions are the objects' true boxes, which are not assigned to other objects.
    """

    def __init__(self, hit: float, miss: float, least: float, with_objects: bool = False) -> None:
        super().__init__(hit, miss)
        self.least, self.with_objects = least, with_objects

    def __call__(self, match_quality_matrix: Tensor) -> Tensor:
        """Return (N,) int64, the object of each region, negative for none, given (objects, N) overlaps."""
        matches = super().__call__(match_quality_matrix)
        count = match_quality_matrix.shape[1] - (len(match_quality_matrix) if self.with_objects else 0)
        overlaps = match_quality_matrix[:, :count]
        if not count:
            return matches
        for index, (row, best) in enumerate(zip(overlaps, overlaps.amax(1), strict=True)):
            is_best = (row == best) & (best >= self.least)
            matches[:count] = torch.where(is_best, index, matches[:count])
        return matches


class ProposalHead(RPNHead):
    """torchvision's layers with float32 results, since boxes in half precision are off by pixels."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return logits and box corrections of the anchors of each map."""
        logits, corrections = super().forward(x)
        return [grid.float() for grid in logits], [grid.float() for grid in corrections]


class ProposalNetwork(RegionProposalNetwork):
    """torchvision's proposal network on a feature pyramid."""

    def __init__(self, stages: StageMaps, options: DetectorOptions) -> None:
        strides = [*stages.strides, 2 * stages.strides[-1]]
        single_sides = tuple((options.anchor * stride,) for stride in strides)
        sides = single_sides if options.anchor_sides == "one" else (FIVE_SIDES,) * len(strides)
        anchors = AnchorGenerator(sides, (RATIOS,) * len(strides))
        candidates = options.candidates or options.proposals
        compared = {"training": candidates, "testing": max(candidates // 2, options.most)}
        n_kept = {"training": options.proposals, "testing": max(min(options.proposals, candidates // 2), options.most)}
        super().__init__(
            anchors,
            ProposalHead(options.channels, anchors.num_anchors_per_location()[0], options.proposal_layers),
            fg_iou_thresh=HIT,
            bg_iou_thresh=MISS,
            batch_size_per_image=SAMPLES,
            positive_fraction=POSITIVE_SHARE,
            pre_nms_top_n=compared,
            post_nms_top_n=n_kept,
            nms_thresh=NMS,
        )
        self._beta = BETAS[options.proposal_loss]
        if options.matching != "torchvision":
            self.proposal_matcher = ObjectMatcher(HIT, MISS, MISS)

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return torchvision's objectness loss, and the box loss with the chosen beta of smooth L1."""
        positive, negative = (torch.where(torch.cat(masks))[0] for masks in self.fg_bg_sampler(labels))
        sampled, targets = torch.cat([positive, negative]), torch.cat(regression_targets)
        box_loss = F.smooth_l1_loss(pred_bbox_deltas[positive], targets[positive], reduction="sum", beta=self._beta)
        object_loss = F.binary_cross_entropy_with_logits(objectness.flatten()[sampled], torch.cat(labels)[sampled])
        return object_loss, box_loss / sampled.numel()
