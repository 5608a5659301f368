"""UPerNet's head: a class for every pixel from maps of several strides (Xiao et al., ECCV 2018, section 3).

The deepest map is seen as a whole, in halves, thirds and sixths (pyramid pooling: Zhao et al., CVPR 2017), what comes
of it goes down a feature pyramid, and all levels are fused at the size of the finest. Layers and widths are those of
the heads in the Swin, LV-ViT and DrLoc papers: 512 channels, batch norm and ReLU after each convolution, dropout 0.1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

POOLED = (1, 2, 3, 6)  # cells per side
DEVIATION = 0.01  # of the first weights of a classifier of pixels


class UperHead(nn.Module):
    """From maps to logits at the stride of the finest.

    Args:
        channels: of each map, shallow to deep; two maps at least.
        n_classes: outputs.
        width: channels within the head.
        dropout: share of channels that are dropped before the classifier.
        pooled: cells per side to which the deepest map is averaged.

    Raises:
        ValueError: there are fewer than two maps.

    Example:
        >>> head = UperHead((8, 16, 32), n_classes=5, width=12).eval()
        >>> maps = [torch.zeros(1, 8, 16, 24), torch.zeros(1, 16, 8, 12), torch.zeros(1, 32, 4, 6)]
        >>> head(maps).shape
        torch.Size([1, 5, 16, 24])
    """

    def __init__(
        self,
        channels: Sequence[int],
        n_classes: int,
        width: int = 512,
        dropout: float = 0.1,
        pooled: Sequence[int] = POOLED,
    ) -> None:
        super().__init__()
        if len(channels) < 2:
            raise ValueError(f"a pyramid needs two maps or more, got {len(channels)}")
        *finer, deepest = channels
        self.pool = PyramidPooling(deepest, width, pooled)
        self.laterals = nn.ModuleList(conv_norm(n, width, 1) for n in finer)
        self.smooth = nn.ModuleList(conv_norm(width, width, 3) for _ in finer)
        self.fuse = conv_norm(len(channels) * width, width, 3)
        self.classify = pixel_classifier(width, n_classes, dropout)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Return (B, K, H, W) logits, H and W being those of the first map.

        Args:
            maps: (B, channels, H_i, W_i), shallow to deep.
        """
        levels = [lateral(one) for lateral, one in zip(self.laterals, maps[:-1], strict=True)]
        levels.append(self.pool(maps[-1]))
        for place in range(len(levels) - 1, 0, -1):
            levels[place - 1] = levels[place - 1] + _resized(levels[place], levels[place - 1])
        smooth = [layer(level) for layer, level in zip(self.smooth, levels[:-1], strict=True)]
        joined = [_resized(level, levels[0]) for level in [*smooth, levels[-1]]]
        return self.classify(self.fuse(torch.cat(joined, dim=1)))


class PyramidPooling(nn.Module):
    """The deepest map beside its averages over a few large cells.

    Args:
        channels: of the map.
        width: of each average, and of what is returned.
        pooled: cells per side of each average.
    """

    def __init__(self, channels: int, width: int, pooled: Sequence[int] = POOLED) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(side), conv_norm(channels, width, 1)) for side in pooled
        )
        self.fuse = conv_norm(channels + len(pooled) * width, width, 3)

    def forward(self, grid: Tensor) -> Tensor:
        """Return a (B, width, H, W) map of a (B, channels, H, W) one."""
        return self.fuse(torch.cat([grid, *(_resized(branch(grid), grid) for branch in self.branches)], dim=1))


class FcnHead(nn.Module):
    """The auxiliary head of the papers: one convolution and a classifier on one map (stride 16).

    Args:
        channels: of the map.
        n_classes: outputs.
        width: channels within.
        dropout: share of channels that are dropped before the classifier.
    """

    def __init__(self, channels: int, n_classes: int, width: int = 256, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.Sequential(conv_norm(channels, width, 3), pixel_classifier(width, n_classes, dropout))

    def forward(self, grid: Tensor) -> Tensor:
        """Return (B, K, H, W) logits of a (B, channels, H, W) map."""
        return self.layers(grid)


def conv_norm(before: int, after: int, side: int) -> nn.Sequential:
    """Return a convolution that keeps the size of its map, a batch norm and a ReLU."""
    convolution = nn.Conv2d(before, after, side, padding=side // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True))


def pixel_classifier(width: int, n_classes: int, dropout: float) -> nn.Sequential:
    """Return dropout of whole channels and a linear classifier of each cell."""
    linear = nn.Conv2d(width, n_classes, 1)
    nn.init.normal_(linear.weight, std=DEVIATION)
    nn.init.zeros_(linear.bias)  # type: ignore[arg-type]
    return nn.Sequential(nn.Dropout2d(dropout), linear)


def _resized(grid: Tensor, like: Tensor) -> Tensor:
    if grid.shape[2:] == like.shape[2:]:
        return grid
    return F.interpolate(grid, like.shape[2:], mode="bilinear", align_corners=False)
