"""Faster R-CNN on any backbone: torchvision's parts behind a feature pyramid of the backbone's maps.

Ren et al., NeurIPS 2015; the pyramid of Lin et al., CVPR 2017, with group norms (Wu and He, ECCV 2018), which let it
train from scratch on few images in small batches. With masks it is Mask R-CNN (He et al., ICCV 2017).
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
from paucal.backbones.stage_maps import StageMaps, stage_maps
from paucal.tasks.detection.network.cascade import CascadeHeads
from paucal.tasks.detection.network.options import HEADS, DetectorOptions
from paucal.tasks.detection.network.proposals import ProposalNetwork
from paucal.tasks.detection.network.region_heads import (
    BOX_CELLS,
    MASK_CELLS,
    RegionHeads,
    SharedPredictor,
    make_pooling,
    mask_layers,
)
from paucal.types import UserError

GROUPS = 32
HIT, POSITIVE_SHARE, NMS = 0.5, 0.25, 0.5
CASCADE_BETA = 1.0  # beta of smooth L1, as in the paper of Cascade R-CNN
LOSS_NAMES = {"loss_objectness": "object", "loss_rpn_box_reg": "proposal"}  # our names of torchvision's losses


class Detector(nn.Module):
    """A two-stage detector.

    Example:
        >>> import torch
        >>> spec = BackboneSpec("resnet18", 0, image_size=(128, 128))
        >>> detector = build_detector(spec, 3, DetectorOptions(channels=32, head_dim=16)).eval()
        >>> sorted(detector(torch.zeros(1, 3, 100, 120), [(100, 120)])[0])
        ['boxes', 'labels', 'scores']
    """

    def __init__(self, stages: StageMaps, classes: int, options: DetectorOptions) -> None:
        super().__init__()
        self.stages, self.options = stages, options
        norms = {"group": partial(nn.GroupNorm, min(GROUPS, options.channels)), "batch": nn.BatchNorm2d, "none": None}
        channels, extra, norm = list(stages.channels), LastLevelMaxPool(), norms[options.pyramid_norm]
        self.pyramid = FeaturePyramidNetwork(channels, options.channels, extra_blocks=extra, norm_layer=norm)
        self.proposals = ProposalNetwork(stages, options)
        self.heads = _build_heads(stages, classes, options)

    def forward(self, images: Tensor, sizes: Sequence[tuple[int, int]]) -> list[dict[str, Tensor]]:
        """Return the objects of each image, in descending order of the score.

        Args:
            images: (B, 3, H, W), normalised; smaller images padded on the right and bottom.
            sizes: (height, width) of each image within its padding, in pixels.

        Returns:
            Per image "boxes" (N, 4), corners in pixels, "scores" (N,) and "labels" (N,) int64, from 0; with masks also
            "masks" (N, 1, 28, 28), the probability that cells of the box belong to the object.
        """
        detections, _ = self._run(images, sizes, None)
        return [{**detected, "labels": detected["labels"] - 1} for detected in detections]  # 0 was the background

    def losses(
        self,
        images: Tensor,
        sizes: Sequence[tuple[int, int]],
        boxes: Sequence[Tensor],
        labels: Sequence[Tensor],
        masks: Sequence[Tensor] | None = None,
        maps: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return the unweighted losses of a batch, by name.

        Args:
            images: (B, 3, H, W), as in `forward`.
            sizes: (height, width) of each image, as in `forward`.
            boxes: (N, 4) corners per image; (0, 4) for an image without objects.
            labels: (N,) int64 from 0, per image.
            masks: (N, H, W) uint8 of 0 and 1, per image; for a detector that predicts masks.
            maps: Maps of the backbone for these images, if they are known already.
        """
        targets = [{"boxes": corners, "labels": label + 1} for corners, label in zip(boxes, labels, strict=True)]
        if self.options.masks and masks is not None:
            targets = [{**target, "masks": mask} for target, mask in zip(targets, masks, strict=True)]
        return self._run(images, sizes, targets, maps)[1]

    def loss_weights(self) -> dict[str, float]:
        """Return the weights of losses by name; losses without an entry have weight 1."""
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
        # torchvision derives strides from the sizes of the maps and the image, which must include the padding.
        height, width = maps[0].shape[-2] * self.stages.strides[0], maps[0].shape[-1] * self.stages.strides[0]
        padded = ImageList(images.new_empty((len(images), 1, height, width)), list(sizes))
        regions, proposal_losses = self.proposals(padded, features, targets)
        detections, head_losses = self.heads(features, regions, list(sizes), targets)
        losses = {**proposal_losses, **head_losses}
        return detections, {LOSS_NAMES.get(str(name), str(name)): value for name, value in losses.items()}


STRIDE, CHANNELS = 32, (160, 960)
STAGES = 7


class LastBlocks(StageMaps):
    """The maps of torchvision's MobileNet detectors: outputs of two late blocks, both with a stride of 32 pixels.

    They are the first block of the last stage of 160 channels of timm's MobileNetV3-Large, and its last layer of 960.
    """

    def __init__(self, backbone: FeatureBackbone) -> None:
        nn.Module.__init__(self)
        self.backbone = backbone
        blocks: Any = getattr(backbone.model, "blocks", ())
        if len(blocks) != STAGES or getattr(blocks[-1][-1], "conv", nn.Identity()).out_channels != CHANNELS[1]:
            raise UserError("--maps last-blocks reads mobilenetv3_large_100: give this --model, or leave it out.")
        backbone.model.conv_head = nn.Identity()  # unused, and missing in the published detectors
        self.strides, self.channels = (STRIDE, STRIDE), CHANNELS
        self.levels = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.multiple, self.fixed_size = STRIDE, None
        self._single, self._shrink = False, 1.0
        self._freeze_unused()

    def grids(self, images: Tensor) -> list[Tensor]:
        """Return the outputs of the two blocks for a batch."""
        model: Any = self.backbone.model
        hidden = model.bn1(model.conv_stem(self._pad_images(images)))
        *earlier_stages, last, final = model.blocks
        for stage in earlier_stages:
            hidden = stage(hidden)
        grid = last[0](hidden)
        return [grid, final(last[1:](grid))]

    def maps_of(self, grids: Sequence[Tensor], size: tuple[int, int]) -> list[Tensor]:
        """Return the maps as they are."""
        return list(grids)


def build_detector(
    spec: BackboneSpec, classes: int, options: DetectorOptions, drop_path_rate: float | None = None
) -> Detector:
    """Build a detector on a backbone, with weights from the global random generator."""
    spec = replace(spec, pretrained=False)
    if options.maps == "last-blocks":
        return Detector(LastBlocks(spec.build(drop_path_rate=drop_path_rate)), classes, options)
    stages = stage_maps(spec, drop_path_rate, options.finest)
    if not stages.strides:
        raise UserError(f"{spec.name} has no map of a stride from {options.finest} pixels up: choose another model.")
    return Detector(stages, classes, options)


def _build_heads(stages: StageMaps, classes: int, options: DetectorOptions) -> CascadeHeads | RegionHeads:
    """Return one head, or three in a row that share the pooling, which has no weights."""
    aligned = options.pooling == "aligned"
    pool, mask_pool = (make_pooling(stages.strides, cells, aligned) for cells in (BOX_CELLS, MASK_CELLS))
    shared = options.cascade and options.cascade_boxes == "shared"
    beta = {"beta": CASCADE_BETA} if options.cascade else {}

    def make_mask_branch() -> dict[str, nn.Module]:
        head, predictor = mask_layers(options.channels, classes, options.mask_norm)
        return {"mask_roi_pool": mask_pool, "mask_head": head, "mask_predictor": predictor}

    def make_head(hit: float, weights: tuple[float, ...] | None) -> RegionHeads:
        dim = options.head_dim
        return RegionHeads(
            pool,
            HEADS[options.head].build(options.channels, BOX_CELLS, dim),
            SharedPredictor(dim, classes) if shared else FastRCNNPredictor(dim, classes + 1),
            batch_size_per_image=options.regions,
            positive_fraction=POSITIVE_SHARE,
            bbox_reg_weights=weights,
            score_thresh=options.least_score,
            nms_thresh=NMS,
            detections_per_img=options.most,
            **(make_mask_branch() if options.masks else {}),
            hit=hit,
            box_loss=options.box_loss,
            matching=options.matching,
            **beta,
        )

    if options.cascade:
        return CascadeHeads(make_head, classes, options.cascade_average)
    return make_head(HIT, None)
