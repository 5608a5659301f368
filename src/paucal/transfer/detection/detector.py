"""Faster R-CNN on any backbone: torchvision's parts behind a feature pyramid of the project's maps.

Ren et al., NeurIPS 2015; the pyramid of Lin et al., CVPR 2017, its layers normalised in groups (Wu and He, ECCV 2018),
which is what lets few images with small batches train it from the start. With masks it is Mask R-CNN (He et al., ICCV
2017).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from paucal.transfer.detection.cascade import CascadeHeads
from paucal.transfer.detection.masks.head import CELLS as MASK_CELLS
from paucal.transfer.detection.masks.head import mask_layers
from paucal.transfer.stages import StageMaps
from paucal.types import UserError

RATIOS = (0.5, 1.0, 2.0)
CELLS = 7  # of a region, along each side
GROUPS = 32
RPN_IOU, RPN_NEGATIVE, RPN_SAMPLES, RPN_NMS = 0.7, 0.3, 256, 0.7
REGION_IOU, POSITIVE_SHARE, NMS = 0.5, 0.25, 0.5


@dataclass(frozen=True)
class DetectorOptions:
    """The size of a detector; the defaults are those of the papers.

    Attributes:
        channels: of the pyramid.
        head_dim: of the two layers that judge a region.
        finest: stride in pixels of the finest map.
        anchor: side of the anchors over the stride of their map.
        regions: that learn, per image.
        proposals: kept per image for training; half as many for predictions.
        cascade: whether three heads follow each other (Cascade R-CNN).
        least_score: of a detection.
        most: detections per image.
        masks: whether the pixels of each object are answered too (Mask R-CNN).
    """

    channels: int = 256
    head_dim: int = 1024
    finest: int = 4
    anchor: int = 8
    regions: int = 512
    proposals: int = 2000
    cascade: bool = False
    least_score: float = 0.05
    most: int = 100
    masks: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a model's card."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Any) -> "DetectorOptions":
        """Read what `to_dict` gave, from a file of anybody.

        Raises:
            UserError: an entry is missing, unknown, of another type or out of range.
        """
        known = {item.name: type(item.default) for item in fields(cls)}
        if not isinstance(stored, dict) or set(stored) != set(known):
            raise UserError("model.json describes no detector of this version of paucal: restore it or train again.")
        for name, kind in known.items():
            if type(stored[name]) is not kind or not 0 <= stored[name] <= 100_000:
                raise UserError(f"model.json gives a detector {name} {stored[name]!r}: restore it or train again.")
        return cls(**stored)


class Detector(nn.Module):
    """A two-stage detector.

    Args:
        stages: maps of the backbone.
        classes: number of classes of objects.
        options: its size.

    Example:
        >>> import torch
        >>> from paucal.backbones import BackboneSpec
        >>> from paucal.transfer.stages import stage_maps
        >>> stages = stage_maps(BackboneSpec("resnet18", 0, image_size=(128, 128)))
        >>> detector = Detector(stages, 3, DetectorOptions(channels=32, head_dim=16)).eval()
        >>> sorted(detector(torch.zeros(1, 3, 100, 120), [(100, 120)])[0])
        ['boxes', 'labels', 'scores']
    """

    def __init__(self, stages: StageMaps, classes: int, options: DetectorOptions) -> None:
        super().__init__()
        self.stages, self.options = stages, options
        norm = partial(nn.GroupNorm, min(GROUPS, options.channels))
        self.pyramid = FeaturePyramidNetwork(
            list(stages.channels), options.channels, extra_blocks=LastLevelMaxPool(), norm_layer=norm
        )
        self.proposals = _proposal_network(stages, options)
        self.heads = _cascade(stages, classes, options) if options.cascade else _region_heads(stages, classes, options)

    def forward(self, images: Tensor, sizes: Sequence[tuple[int, int]]) -> list[dict[str, Tensor]]:
        """Return the objects of each image, the surest first.

        Args:
            images: (B, 3, H, W), normalised; smaller images padded on the right and bottom.
            sizes: (height, width) of each image within its padding, in pixels.

        Returns:
            Per image "boxes" (N, 4), corners in pixels, "scores" (N,) and "labels" (N,) int64, from 0; with masks
            "masks" (N, 1, 28, 28) too, the share from 0 to 1 of the object in cells of its box.
        """
        found, _ = self._run(images, sizes, None)
        return [{**one, "labels": one["labels"] - 1} for one in found]  # torchvision's 0 is the background

    def losses(
        self,
        images: Tensor,
        sizes: Sequence[tuple[int, int]],
        boxes: Sequence[Tensor],
        labels: Sequence[Tensor],
        masks: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return the unweighted losses of a batch, by name.

        Args:
            images: as in `forward`.
            sizes: as in `forward`.
            boxes: (N, 4) corners in pixels, per image; none where it shows no object.
            labels: (N,) int64 from 0, per image.
            masks: (N, H, W) uint8 of 0 and 1, per image; for a detector that answers masks.
        """
        targets = [{"boxes": one, "labels": name + 1} for one, name in zip(boxes, labels, strict=True)]
        if self.options.masks and masks is not None:
            targets = [{**target, "masks": one} for target, one in zip(targets, masks, strict=True)]
        return self._run(images, sizes, targets)[1]

    def loss_weights(self) -> dict[str, float]:
        """Return the weights of the losses; those that are not named count once."""
        return self.heads.loss_weights() if isinstance(self.heads, CascadeHeads) else {}

    def _run(
        self, images: Tensor, sizes: Sequence[tuple[int, int]], targets: list[dict[str, Tensor]] | None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        maps = self.stages(images)
        named = OrderedDict((str(level), one) for level, one in enumerate(maps))
        features = self.pyramid(named)
        # Strides are found by comparing the maps with the image: with all of it, the padding too.
        height, width = maps[0].shape[-2] * self.stages.strides[0], maps[0].shape[-1] * self.stages.strides[0]
        listed = ImageList(images.new_empty((len(images), 1, height, width)), list(sizes))
        proposed, first = self.proposals(listed, features, targets)
        found, second = self.heads(features, proposed, list(sizes), targets)
        return found, {_NAMES.get(str(name), str(name)): value for name, value in {**first, **second}.items()}


_NAMES = {
    "loss_objectness": "object",
    "loss_rpn_box_reg": "proposal",
    "loss_classifier": "class",
    "loss_box_reg": "box",
    "loss_mask": "mask",
}


def _proposal_network(stages: StageMaps, options: DetectorOptions) -> RegionProposalNetwork:
    strides = [*stages.strides, 2 * stages.strides[-1]]
    anchors = AnchorGenerator(tuple((options.anchor * stride,) for stride in strides), (RATIOS,) * len(strides))
    kept = {"training": options.proposals, "testing": max(options.proposals // 2, options.most)}
    head = RPNHead(options.channels, anchors.num_anchors_per_location()[0])
    return RegionProposalNetwork(
        anchors, head, RPN_IOU, RPN_NEGATIVE, RPN_SAMPLES, 0.5, dict(kept), dict(kept), RPN_NMS
    )


def _pool(stages: StageMaps, cells: int = CELLS) -> MultiScaleRoIAlign:
    return MultiScaleRoIAlign([str(level) for level in range(len(stages.strides))], cells, 2)


def _masks(stages: StageMaps, classes: int, options: DetectorOptions) -> Sequence[nn.Module]:
    """Return the three parts of a mask head, as torchvision's heads take them."""
    return _pool(stages, MASK_CELLS), *mask_layers(options.channels, classes)


def _region_heads(stages: StageMaps, classes: int, options: DetectorOptions) -> RoIHeads:
    head = TwoMLPHead(options.channels * CELLS**2, options.head_dim)
    predictor = FastRCNNPredictor(options.head_dim, classes + 1)
    return RoIHeads(
        *(_pool(stages), head, predictor, REGION_IOU, REGION_IOU, options.regions, POSITIVE_SHARE, None),
        *(options.least_score, NMS, options.most),
        *(_masks(stages, classes, options) if options.masks else ()),
    )


def _cascade(stages: StageMaps, classes: int, options: DetectorOptions) -> CascadeHeads:
    return CascadeHeads(
        _pool(stages),
        lambda: TwoMLPHead(options.channels * CELLS**2, options.head_dim),
        options.head_dim,
        classes,
        (options.regions, POSITIVE_SHARE),
        (options.least_score, NMS, options.most),
        partial(_masks, stages, classes, options) if options.masks else None,
    )
