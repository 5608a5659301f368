"""A backbone and a head in one network that gives every pixel of an image its classes."""

from torch import Tensor, nn
from torch.nn import functional as F

from paucal.backbones import BackboneSpec
from paucal.backbones.stage_maps import StageMaps, stage_maps
from paucal.tasks.segmentation.uper_head import FcnHead, UperHead

AUXILIARY_STRIDE = 16  # of the map that the auxiliary head reads: the third of four in the papers


class SegmentationNetwork(nn.Module):
    """UPerNet on the maps of any backbone.

    Args:
        maps: reads the backbone.
        n_classes: of the pixels.
        width: channels within the head.
        dropout: share of channels that are dropped before the classifier.
    """

    def __init__(self, maps: StageMaps, n_classes: int, width: int = 512, dropout: float = 0.1) -> None:
        super().__init__()
        self.maps = maps
        self.head = UperHead(maps.channels, n_classes, width, dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, K, H, W) logits of normalised (B, C, H, W) images."""
        return self.to_pixels(self.head(self.maps(images)), images)

    def to_pixels(self, logits: Tensor, images: Tensor) -> Tensor:
        """Return logits of cells as logits of the pixels of images, without what the images were padded with.

        Args:
            logits: (B, K, h, w), which cover the padded images.
            images: (B, C, H, W), before they were padded.
        """
        height, width = images.shape[-2:]
        size = self.maps.padded_size(height, width)
        whole = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        return whole[..., :height, :width]

    def auxiliary_head(self, width: int = 256, dropout: float = 0.1) -> FcnHead:
        """Return a fresh auxiliary head for the map that `auxiliary_level` names."""
        classes = self.head.classify[-1].out_channels
        return FcnHead(self.maps.channels[self.auxiliary_level], classes, width, dropout)  # type: ignore[arg-type]

    @property
    def auxiliary_level(self) -> int:
        """The position of the deepest map with a stride of at most 16, or of the finest where there is none."""
        fitting = [place for place, stride in enumerate(self.maps.strides) if stride <= AUXILIARY_STRIDE]
        return fitting[-1] if fitting else 0


def segmentation_network(
    spec: BackboneSpec, n_classes: int, width: int = 512, dropout: float = 0.1, drop_path_rate: float | None = None
) -> SegmentationNetwork:
    """Build a network with fresh weights from the global random generator.

    Args:
        spec: of the backbone; its image size is that of the windows the network sees.
        n_classes: of the pixels.
        width: channels within the head.
        dropout: share of channels that are dropped before the classifier.
        drop_path_rate: chance that a block is skipped in training; None for the model's own.

    Raises:
        UserError: the model does not exist, keeps no grid, or cannot take images of that size.

    Example:
        >>> import torch
        >>> network = segmentation_network(BackboneSpec("resnet18", 0, image_size=(64, 64)), 3, width=16).eval()
        >>> network(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 3, 64, 64])
    """
    return SegmentationNetwork(stage_maps(spec, drop_path_rate), n_classes, width, dropout)
