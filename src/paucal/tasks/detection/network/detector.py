"""Faster R-CNN with any backbone: torchvision's heads on a feature pyramid over the backbone's feature maps.

This is the detector of Ren et al., NeurIPS 2015, with the feature pyramid of Lin et al., CVPR 2017. Group norms (Wu and
He, ECCV 2018) in the pyramid allow training from scratch on few images in small batches. A detector with masks is Mask
R-CNN (He et al., ICCV 2017).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from paucal.backbones import BackboneSpec, FeatureBackbone
from paucal.backbones.stage_maps import PyramidBackbone, build_pyramid_backbone
from paucal.tasks.detection.network.cascade import CascadeHeads
from paucal.tasks.detection.network.options import HEADS, DetectorOptions
from paucal.tasks.detection.network.proposals import ProposalNetwork
from paucal.tasks.detection.network.region_heads import (
    BOX_POOL_SIZE,
    MASK_POOL_SIZE,
    RegionHeads,
    SharedPredictor,
    make_pooling,
    mask_layers,
)
from paucal.types import UserError

MAX_NORM_GROUPS = 32  # maximum number of groups of a group norm
# Minimum IoU of a positive region with its object, maximum fraction of positive regions among the sampled regions, and
# IoU threshold of non-maximum suppression
POSITIVE_IOU, POSITIVE_FRACTION, NMS_IOU = 0.5, 0.25, 0.5
CASCADE_BETA = 1.0  # beta of smooth L1, as in the Cascade R-CNN paper
# Names of losses in torchvision, mapped to their names in the metrics of a run
LOSS_NAMES = {"loss_objectness": "object", "loss_rpn_box_reg": "proposal"}


class Detector(nn.Module):
    """A two-stage detector: feature maps, a pyramid, a proposal network, and heads that classify the proposals.

    Example:
        >>> import torch
        >>> spec = BackboneSpec("resnet18", 0, image_size=(128, 128))
        >>> detector = build_detector(spec, 3, DetectorOptions(channels=32, head_dim=16)).eval()
        >>> sorted(detector(torch.zeros(1, 3, 100, 120), [(100, 120)])[0])
        ['boxes', 'labels', 'scores']
    """

    def __init__(self, stages: PyramidBackbone, classes: int, options: DetectorOptions) -> None:
        super().__init__()
        self.stages, self.options = stages, options
        norms = {
            "group": partial(nn.GroupNorm, min(MAX_NORM_GROUPS, options.channels)),
            "batch": nn.BatchNorm2d,
            "none": None,
        }
        channels, extra, norm = list(stages.channels), LastLevelMaxPool(), norms[options.pyramid_norm]
        self.pyramid = FeaturePyramidNetwork(channels, options.channels, extra_blocks=extra, norm_layer=norm)
        self.proposals = ProposalNetwork(stages, options)
        self.heads = _build_heads(stages, classes, options)

    def forward(self, images: Tensor, sizes: Sequence[tuple[int, int]]) -> list[dict[str, Tensor]]:
        """Return the objects of each image, in descending order of the score.

        The (B, 3, H, W) normalised images are padded on the right and bottom; `sizes` are the heights and widths
        within the padding. The result has "boxes" (N, 4), corners in pixels; "scores" (N,); "labels" (N,) int64, from
        0; and, if the detector predicts masks, "masks" (N, 1, 28, 28), probabilities that the points of a 28 x 28 grid
        in the box belong to the object.
        """
        detections, _ = self._run(images, sizes, None)
        # In torchvision, class 0 is the background.
        return [{**detected, "labels": detected["labels"] - 1} for detected in detections]

    def losses(
        self,
        images: Tensor,
        sizes: Sequence[tuple[int, int]],
        boxes: Sequence[Tensor],
        labels: Sequence[Tensor],
        masks: Sequence[Tensor] | None = None,
        maps: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return the unweighted losses of a batch, by name; boxes, labels and masks are as in `BoxBatch`.

        `maps` are the feature maps of the images, one per level; None to compute the maps with the backbone.
        """
        targets = [{"boxes": corners, "labels": label + 1} for corners, label in zip(boxes, labels, strict=True)]
        if self.options.masks and masks is not None:
            targets = [{**target, "masks": mask} for target, mask in zip(targets, masks, strict=True)]
        return self._run(images, sizes, targets, maps)[1]

    def loss_weights(self) -> dict[str, float]:
        """Return loss weights by the name of the loss; losses without an entry have weight 1."""
        heads = self.heads
        return heads.loss_weights() if isinstance(heads, CascadeHeads) else {"box": heads.box_weight}

    def _run(
        self,
        images: Tensor,
        sizes: Sequence[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None,
        cached_maps: Sequence[Tensor] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        maps = self.stages(images) if cached_maps is None else cached_maps
        features = self.pyramid(OrderedDict((str(level), grid) for level, grid in enumerate(maps)))
        # torchvision derives strides from the sizes of the maps and of the image, so both must include the padding.
        height, width = maps[0].shape[-2] * self.stages.strides[0], maps[0].shape[-1] * self.stages.strides[0]
        padded = ImageList(images.new_empty((len(images), 1, height, width)), list(sizes))
        regions, proposal_losses = self.proposals(padded, features, targets)
        detections, head_losses = self.heads(features, regions, list(sizes), targets)
        losses = {**proposal_losses, **head_losses}
        return detections, {LOSS_NAMES.get(str(name), str(name)): value for name, value in losses.items()}


MOBILENET_STRIDE, MOBILENET_CHANNELS = 32, (160, 960)  # stride in pixels; channels of the two feature maps
MOBILENET_STAGES = 7  # number of stages of timm's MobileNetV3-Large


class LastBlockMaps(PyramidBackbone):
    """Maps of torchvision's MobileNet detectors: outputs of two late blocks (160 and 960 channels) of stride 32."""

    def __init__(self, backbone: FeatureBackbone) -> None:
        nn.Module.__init__(self)
        self.backbone = backbone
        blocks: Any = getattr(backbone.model, "blocks", ())
        if (
            len(blocks) != MOBILENET_STAGES
            or getattr(blocks[-1][-1], "conv", nn.Identity()).out_channels != MOBILENET_CHANNELS[1]
        ):
            raise UserError(
                "--maps last-blocks is only for mobilenetv3_large_100: give --model mobilenetv3_large_100, or remove "
                "--maps."
            )
        backbone.model.conv_head = nn.Identity()  # unused, and missing in the published detectors
        self.strides, self.channels = (MOBILENET_STRIDE, MOBILENET_STRIDE), MOBILENET_CHANNELS
        self.levels = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.multiple, self.fixed_size = MOBILENET_STRIDE, None
        self._has_single_grid, self._image_scale = False, 1.0
        self._freeze_unused_parameters()

    def grids(self, images: Tensor) -> list[Tensor]:
        """Return the outputs of the two blocks for a batch of images."""
        model: Any = self.backbone.model
        hidden = model.bn1(model.conv_stem(self._pad_images(images)))
        *earlier_stages, last, final = model.blocks
        for stage in earlier_stages:
            hidden = stage(hidden)
        grid = last[0](hidden)
        return [grid, final(last[1:](grid))]

    def maps_from_grids(self, grids: Sequence[Tensor], size: tuple[int, int]) -> list[Tensor]:
        """Return the block outputs unchanged, since these already are the feature maps."""
        return list(grids)


def build_detector(
    spec: BackboneSpec, classes: int, options: DetectorOptions, drop_path_rate: float | None = None
) -> Detector:
    """Build a detector with random weights from torch's global generator."""
    spec = replace(spec, pretrained=False)
    if options.maps == "last-blocks":
        return Detector(LastBlockMaps(spec.build(drop_path_rate=drop_path_rate)), classes, options)
    stages = build_pyramid_backbone(spec, drop_path_rate, options.finest)
    if not stages.strides:
        raise UserError(
            f"{spec.name} has no feature map with a stride of {options.finest} pixels or more: choose another model."
        )
    return Detector(stages, classes, options)


def _build_heads(stages: PyramidBackbone, classes: int, options: DetectorOptions) -> CascadeHeads | RegionHeads:
    """Return one head, or the three heads of a cascade, which share the pooling modules (these have no weights)."""
    aligned = options.pooling == "aligned"
    pool, mask_pool = (make_pooling(stages.strides, size, aligned) for size in (BOX_POOL_SIZE, MASK_POOL_SIZE))
    shared = options.cascade and options.cascade_boxes == "shared"
    beta = {"beta": CASCADE_BETA} if options.cascade else {}

    def make_mask_branch() -> dict[str, nn.Module]:
        head, predictor = mask_layers(options.channels, classes, options.mask_norm)
        return {"mask_roi_pool": mask_pool, "mask_head": head, "mask_predictor": predictor}

    def make_head(min_iou: float, weights: tuple[float, ...] | None) -> RegionHeads:
        dim = options.head_dim
        return RegionHeads(
            pool,
            HEADS[options.head].build(options.channels, BOX_POOL_SIZE, dim),
            SharedPredictor(dim, classes) if shared else FastRCNNPredictor(dim, classes + 1),
            batch_size_per_image=options.regions,
            positive_fraction=POSITIVE_FRACTION,
            bbox_reg_weights=weights,
            score_thresh=options.least_score,
            nms_thresh=NMS_IOU,
            detections_per_img=options.most,
            **(make_mask_branch() if options.masks else {}),
            positive_iou=min_iou,
            box_loss=options.box_loss,
            matching=options.matching,
            **beta,
        )

    if options.cascade:
        return CascadeHeads(make_head, classes, options.cascade_average)
    return make_head(POSITIVE_IOU, None)
