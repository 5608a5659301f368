"""UPerNet on the feature maps of any backbone, for semantic segmentation (Xiao et al., ECCV 2018, section 3).

The head pools the deepest feature map to the sizes 1x1, 2x2, 3x3 and 6x6 (pyramid pooling: Zhao et al., CVPR 2017),
adds the result to a top-down feature pyramid, and fuses all levels at the resolution of the finest level. As in the
Swin, LV-ViT and DrLoc papers, the head has 512 channels, a batch norm and a ReLU after each convolution, and dropout
with probability 0.1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paucal.backbones import BackboneSpec
from paucal.backbones.stage_maps import PyramidBackbone, build_pyramid_backbone

POOLED_SIDES = (1, 2, 3, 6)  # heights and widths of the pooled versions of the deepest feature map
CLASSIFIER_STD = 0.01  # standard deviation of the classifier's initial weights
AUXILIARY_STRIDE = 16  # stride of the feature map of the auxiliary head, as in Swin's code


class UperHead(nn.Module):
    """UPerNet's head, which returns logits at the stride of the finest of two or more feature maps, shallow to deep.

    The head has `width` channels, which are dropped with probability `dropout` before the classifier.

    Example:
        >>> head = UperHead((8, 16, 32), n_classes=5, width=12).eval()
        >>> maps = [torch.zeros(1, 8, 16, 24), torch.zeros(1, 16, 8, 12), torch.zeros(1, 32, 4, 6)]
        >>> head(maps).shape
        torch.Size([1, 5, 16, 24])
    """

    def __init__(self, channels: Sequence[int], n_classes: int, width: int = 512, dropout: float = 0.1) -> None:
        super().__init__()
        if len(channels) < 2:
            raise ValueError(f"a pyramid needs two maps or more, got {len(channels)}")
        *finer_channels, deepest = channels
        self.pool = PyramidPooling(deepest, width)
        self.laterals = nn.ModuleList(conv_bn_relu(n, width, 1) for n in finer_channels)
        self.smooth = nn.ModuleList(conv_bn_relu(width, width, 3) for _ in finer_channels)
        self.fuse = conv_bn_relu(len(channels) * width, width, 3)
        self.classify = pixel_classifier(width, n_classes, dropout)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Return (B, K, H_1, W_1) logits from (B, C_i, H_i, W_i) feature maps, shallow to deep."""
        levels = [lateral(grid) for lateral, grid in zip(self.laterals, maps[:-1], strict=True)]
        levels.append(self.pool(maps[-1]))
        for index in range(len(levels) - 1, 0, -1):
            levels[index - 1] = levels[index - 1] + _resize_like(levels[index], levels[index - 1])
        smooth = [layer(level) for layer, level in zip(self.smooth, levels[:-1], strict=True)]
        resized = [_resize_like(level, levels[0]) for level in [*smooth, levels[-1]]]
        return self.classify(self.fuse(torch.cat(resized, dim=1)))


class PyramidPooling(nn.Module):
    """Fuses the deepest feature map with versions of this map that are average-pooled to smaller sizes."""

    def __init__(self, channels: int, width: int, pooled: Sequence[int] = POOLED_SIDES) -> None:
        super().__init__()
        branches = (nn.Sequential(nn.AdaptiveAvgPool2d(side), conv_bn_relu(channels, width, 1)) for side in pooled)
        self.branches = nn.ModuleList(branches)
        self.fuse = conv_bn_relu(channels + len(pooled) * width, width, 3)

    def forward(self, grid: Tensor) -> Tensor:
        """Return a (B, width, H, W) feature map from a (B, channels, H, W) feature map."""
        return self.fuse(torch.cat([grid, *(_resize_like(branch(grid), grid) for branch in self.branches)], dim=1))


class FcnHead(nn.Module):
    """The papers' auxiliary head: a 3x3 convolution and a classifier on the feature map of stride 16."""

    def __init__(self, channels: int, n_classes: int, width: int = 256, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(conv_bn_relu(channels, width, 3), pixel_classifier(width, n_classes, dropout))

    def forward(self, grid: Tensor) -> Tensor:
        """Return (B, K, H, W) logits from a (B, channels, H, W) feature map."""
        return self.layers(grid)


def conv_bn_relu(in_channels: int, out_channels: int, kernel: int) -> nn.Sequential:
    """Return a convolution with "same" padding, a batch norm and a ReLU."""
    convolution = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))


def pixel_classifier(width: int, n_classes: int, dropout: float) -> nn.Sequential:
    """Return channel dropout, followed by a 1x1 convolution to the logits of the classes."""
    linear = nn.Conv2d(width, n_classes, 1)
    nn.init.normal_(linear.weight, std=CLASSIFIER_STD)
    nn.init.zeros_(linear.bias)  # type: ignore[arg-type]
    return nn.Sequential(nn.Dropout2d(dropout), linear)


def _resize_like(grid: Tensor, like: Tensor) -> Tensor:
    if grid.shape[2:] == like.shape[2:]:
        return grid
    return F.interpolate(grid, like.shape[2:], mode="bilinear", align_corners=False)


class SegmentationNetwork(nn.Module):
    """A backbone with UPerNet's head on its feature maps."""

    def __init__(self, maps: PyramidBackbone, n_classes: int, width: int = 512, dropout: float = 0.1) -> None:
        super().__init__()
        self.maps = maps
        self.head = UperHead(maps.channels, n_classes, width, dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return (B, K, H, W) logits of normalised (B, C, H, W) images."""
        return self.to_pixels(self.head(self.maps(images)), images)

    def to_pixels(self, logits: Tensor, images: Tensor) -> Tensor:
        """Upsample (B, K, h, w) logits to the pixels of the padded images, and crop the padding."""
        height, width = images.shape[-2:]
        size = self.maps.padded_size(height, width)
        enlarged = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        return enlarged[..., :height, :width]

    def make_auxiliary_head(self, width: int = 256, dropout: float = 0.1) -> FcnHead:
        """Return a newly initialised auxiliary head for the feature map at `auxiliary_level`."""
        classes = self.head.classify[-1].out_channels
        return FcnHead(self.maps.channels[self.auxiliary_level], classes, width, dropout)  # type: ignore[arg-type]

    @property
    def auxiliary_level(self) -> int:
        """Index of the deepest feature map with a stride of at most 16; 0 (the finest) if all strides are larger."""
        positions = [index for index, stride in enumerate(self.maps.strides) if stride <= AUXILIARY_STRIDE]
        return positions[-1] if positions else 0


def build_segmentation_network(
    spec: BackboneSpec, n_classes: int, width: int = 512, dropout: float = 0.1, drop_path_rate: float | None = None
) -> SegmentationNetwork:
    """Build a segmentation network for windows of the spec's image size, with random weights from torch's generator."""
    return SegmentationNetwork(build_pyramid_backbone(spec, drop_path_rate), n_classes, width, dropout)
