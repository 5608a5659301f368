"""The CvT of EsViT as its program computes it: maps, linear layers as 1x1 convolutions, windows cut in every layer."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from plain.cvt import as_map, as_tokens, embedded, norm
from plain.cvt_drloc import pointwise


class Plain(nn.Module):
    """A CvT of EsViT of ours without relative bias, padded as published, computed layer by layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of images (B, 3, H, W)."""
        model: Any = self.model
        x = images
        for stage in model.stages:
            x = embedded(stage.embed, x)
            for block in stage.blocks:
                x = x + block.drop_path(attention(block.attn, channel_norm(block.norm1, x)))
                x = x + block.drop_path(mlp(block.mlp, channel_norm(block.norm2, x)))
        return model.head(norm(model.norm, as_tokens(x)).mean(1))


def channel_norm(layer: Any, x: Tensor) -> Tensor:
    """Return the map normed over its channels."""
    return as_map(norm(layer, as_tokens(x)), (x.shape[2], x.shape[3]))


def attention(layers: Any, x: Tensor) -> Tensor:
    """Return the map after attention within windows, whose padding is convolved and attended to."""
    batch, _, height, width = x.shape
    side = min(layers.window_size[0], height, width)
    x = functional.pad(x, (0, -width % side, 0, -height % side))
    down, across = x.shape[2] // side, x.shape[3] // side
    x = pointwise(layers.qkv, layers.conv_proj.bn(layers.conv_proj.conv(x)))
    x = x.reshape(batch, 3, layers.num_heads, -1, down, side, across, side)
    query, key, value = x.permute(1, 0, 4, 6, 2, 5, 7, 3).flatten(5, 6).flatten(1, 3)
    weights = torch.einsum("bhld,bhtd->bhlt", query, key) * layers.scale
    weights = layers.attn_drop(weights.softmax(-1))
    x = torch.einsum("bhlt,bhtd->bhld", weights, value)
    x = x.reshape(batch, down, across, layers.num_heads, side, side, -1).permute(0, 3, 6, 1, 4, 2, 5)
    x = x.reshape(batch, -1, down * side, across * side)[:, :, :height, :width]
    return layers.proj_drop(pointwise(layers.proj, x))


def mlp(layers: Any, x: Tensor) -> Tensor:
    """Return the map after two 1x1 convolutions with a quick GELU between them."""
    x = pointwise(layers.fc1, x)
    x = layers.drop1(x * torch.sigmoid(1.702 * x))
    return layers.drop2(pointwise(layers.fc2, x))
