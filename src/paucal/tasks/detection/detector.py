"""Faster R-CNN on any backbone: torchvision's parts behind a feature pyramid of the project's maps.

Ren et al., NeurIPS 2015; the pyramid of Lin et al., CVPR 2017, its layers normalised in groups (Wu and He, ECCV 2018),
which is what lets few images with small batches train it from the start. With masks it is Mask R-CNN (He et al., ICCV
2017).
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from paucal.backbones.stage_maps import StageMaps
from paucal.tasks.detection.cascade import CascadeHeads
from paucal.tasks.detection.heads import HEADS
from paucal.tasks.detection.instance_masks.head import CELLS as MASK_CELLS
from paucal.tasks.detection.instance_masks.head import mask_layers
from paucal.tasks.detection.options import DetectorOptions
from paucal.tasks.detection.pooling import make_pooling
from paucal.tasks.detection.proposals import ProposalNetwork
from paucal.tasks.detection.region_heads import RegionHeads, SharedPredictor

CELLS = 7  # of a region, along each side
GROUPS = 32
HIT, POSITIVE_SHARE, NMS = 0.5, 0.25, 0.5
CASCADE_BETA = 1.0  # of smooth L1, as in the paper of Cascade R-CNN


class Detector(nn.Module):
    """A two-stage detector.

    Args:
        stages: maps of the backbone.
        classes: number of classes of objects.
        options: its size.

    Example:
        >>> import torch
        >>> from paucal.backbones import BackboneSpec
        >>> from paucal.backbones.stage_maps import stage_maps
        >>> stages = stage_maps(BackboneSpec("resnet18", 0, image_size=(128, 128)))
        >>> detector = Detector(stages, 3, DetectorOptions(channels=32, head_dim=16)).eval()
        >>> sorted(detector(torch.zeros(1, 3, 100, 120), [(100, 120)])[0])
        ['boxes', 'labels', 'scores']
    """

    def __init__(self, stages: StageMaps, classes: int, options: DetectorOptions) -> None:
        super().__init__()
        self.stages, self.options = stages, options
        norm = partial(nn.GroupNorm, min(GROUPS, options.channels)) if options.pyramid_norm == "group" else None
        self.pyramid = FeaturePyramidNetwork(
            list(stages.channels), options.channels, extra_blocks=LastLevelMaxPool(), norm_layer=norm
        )
        self.proposals = ProposalNetwork(stages, options)
        self.heads = _heads(stages, classes, options)

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
        heads = self.heads
        return heads.loss_weights() if isinstance(heads, CascadeHeads) else {"box": heads.box_weight}

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


_NAMES = {"loss_objectness": "object", "loss_rpn_box_reg": "proposal"}


def _heads(stages: StageMaps, classes: int, options: DetectorOptions) -> CascadeHeads | RegionHeads:
    """Return what judges the proposals: one head, or three in a row that share the pooling, which learns nothing."""
    pool, masks = (make_pooling(stages.strides, cells, options.pooling == "aligned") for cells in (CELLS, MASK_CELLS))
    shared = options.cascade and options.cascade_boxes == "shared"
    beta = {"beta": CASCADE_BETA} if options.cascade else {}

    def make_head(hit: float, weights: tuple[float, ...] | None) -> RegionHeads:
        dim = options.head_dim
        return RegionHeads(
            *(pool, HEADS[options.head].build(options.channels, CELLS, dim)),
            SharedPredictor(dim, classes) if shared else FastRCNNPredictor(dim, classes + 1),
            *(hit, hit, options.regions, POSITIVE_SHARE, weights, options.least_score, NMS, options.most),
            *((masks, *mask_layers(options.channels, classes)) if options.masks else ()),
            hit=hit,
            box_loss=options.box_loss,
            matching=options.matching,
            **beta,
        )

    if options.cascade:
        return CascadeHeads(make_head, classes, options.cascade_average)
    return make_head(HIT, None)
