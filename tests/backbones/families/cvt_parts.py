"""What the tests of the flavours of CvT share."""

import torch
from torch import nn
from torch.nn import functional

from paucal.backbones.families.cvt import DepthwiseNorm

SMALL = {"embed_dims": (8, 16, 24), "depths": (1, 1, 2), "num_heads": (1, 2, 3), "num_classes": 3}


def stirred(model):
    """Give norms and statistics values that are not those they start with."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.3, 0.3)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
        if isinstance(part, nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.5, 0.5)
    return model


def images(height: int = 32, width: int = 48, count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def convolved(part: DepthwiseNorm, cells: torch.Tensor, stride: int) -> torch.Tensor:
    """Return (B, N, C) of (B, C, H, W), cell by cell."""
    height, width = cells.shape[2:]
    padded = functional.pad(cells, (1, 1, 1, 1))
    out = torch.stack(
        [
            (padded[:, :, row : row + 3, column : column + 3] * part.conv.weight[:, 0]).sum((2, 3))
            for row in range(0, height, stride)
            for column in range(0, width, stride)
        ],
        1,
    )
    bn = part.bn
    return (out - bn.running_mean) / (bn.running_var + bn.eps).sqrt() * bn.weight + bn.bias
