"""The mask head: torchvision's layers behind regions of 14 cells, and what its answers mean in pixels.

He et al., ICCV 2017, figure 4 (right): four convolutions, one that doubles the cells, and a mask of 28 cells for each
class, of which that of the object's own class learns.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_loss, paste_masks_in_image

from paucal.tasks.detection.instance_masks.run_lengths import RunLengths, packed

CELLS = 14  # of a region, along each side; answers have twice as many
LAYERS = 4
LEAST = 0.5  # share from which on a pixel belongs to the object


def mask_layers(channels: int, classes: int) -> tuple[nn.Module, nn.Module]:
    """Return the layers between the cells of a region and its masks, one for each class and one for the background.

    Args:
        channels: of the pyramid, and of all layers; with the papers' 256 they are torchvision's own.
        classes: number of classes of objects.
    """
    return MaskRCNNHeads(channels, [channels] * LAYERS, 1), MaskRCNNPredictor(channels, channels, classes + 1)


def mask_logits(
    stage: RoIHeads, features: Mapping[str, Tensor], regions: list[Tensor], sizes: list[tuple[int, int]]
) -> Tensor:
    """Return (N, K + 1, 28, 28) logits of the masks of the regions of all images.

    Args:
        stage: heads with layers for masks.
        features: maps by name.
        regions: (N_i, 4) corners per image.
        sizes: (height, width) of each image.
    """
    cells = stage.mask_roi_pool(dict(features), regions, sizes)  # type: ignore[misc]
    return stage.mask_predictor(stage.mask_head(cells))  # type: ignore[misc]


def mask_loss(
    stage: RoIHeads,
    features: Mapping[str, Tensor],
    regions: Sequence[Tensor],
    matched: Sequence[Tensor],
    labels: Sequence[Tensor],
    sizes: list[tuple[int, int]],
    targets: Sequence[Mapping[str, Tensor]],
) -> Tensor:
    """Return torchvision's loss of the masks of the regions that are objects: the mean cross-entropy of their cells.

    Args:
        stage: heads with layers for masks.
        features: maps by name.
        regions: (N_i, 4) corners per image.
        matched: (N_i,) int64 per image, the object of each region.
        labels: (N_i,) int64 per image, 0 for the background.
        sizes: (height, width) of each image.
        targets: "masks" (M_i, H, W) and "labels" (M_i,) from 1, per image.
    """
    hits = [one > 0 for one in labels]
    inside = [one[hit] for one, hit in zip(regions, hits, strict=True)]
    own = [one[hit] for one, hit in zip(matched, hits, strict=True)]
    logits = mask_logits(stage, features, inside, sizes)
    return maskrcnn_loss(logits, inside, [one["masks"] for one in targets], [one["labels"] for one in targets], own)


def mean_masks(stages: Sequence[Tensor], labels: Sequence[Tensor]) -> list[Tensor]:
    """Return the (N_i, 1, 28, 28) shares of each image's objects, as the mean of several heads.

    Args:
        stages: (N, K + 1, 28, 28) logits of each head.
        labels: (N_i,) int64 per image, from 1.
    """
    shares = torch.stack([logits.sigmoid() for logits in stages]).mean(0)
    joined = torch.cat(list(labels))
    own = shares[torch.arange(len(joined), device=joined.device), joined][:, None]
    return list(own.split([len(one) for one in labels]))


def pasted_masks(shares: Tensor, boxes: Tensor, size: tuple[int, int]) -> tuple[RunLengths, ...]:
    """Return the masks of objects as lengths of runs in the pixels of an image.

    Args:
        shares: (N, 1, 28, 28) of the objects' masks within their boxes, from 0 to 1.
        boxes: (N, 4) corners in pixels of the image.
        size: its (height, width).
    """
    # One by one: a hundred objects of a photograph at once would take gigabytes.
    return tuple(
        packed((paste_masks_in_image(share[None], box[None], size)[0, 0] >= LEAST).numpy())
        for share, box in zip(shares, boxes, strict=True)
    )
