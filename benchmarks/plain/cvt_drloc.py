"""The CvT of DrLoc as its program computes it: maps throughout, linear layers as 1x1 convolutions."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

EPS = 1e-5


class Plain(nn.Module):
    """A CvT of DrLoc of ours, with its own norm, computed from its parameters layer by layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of images (B, 3, H, W)."""
        model: Any = self.model
        x = images
        for stage in model.stages:
            x = norm(stage.embed.norm, stage.embed.proj(x))
            for block in stage.blocks:
                x = x + block.drop_path(attention(block.attn, norm(block.norm1, x)))
                x = x + block.drop_path(mlp(block.mlp, norm(block.norm2, x)))
        return model.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def norm(layer: Any, x: Tensor) -> Tensor:
    """Return the map normed over the channels by their standard deviation plus 1e-5."""
    deviation = x.var(1, unbiased=False, keepdim=True).sqrt()
    mean = x.mean(1, keepdim=True)
    return (x - mean) / (deviation + EPS) * layer.weight[:, None, None] + layer.bias[:, None, None]


def pointwise(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return a 1x1 convolution of the map with the weights of a linear layer."""
    return functional.conv2d(x, layer.weight[:, :, None, None], layer.bias)


def attention(layers: Any, x: Tensor) -> Tensor:
    """Return the map after attention; one depthwise convolution of stride 2 serves keys and values."""
    batch, _, height, width = x.shape
    query = pointwise(layers.proj_q, layers.conv_proj_q.bn(layers.conv_proj_q.conv(x)))
    both = pointwise(layers.proj_kv, layers.conv_proj_kv.bn(layers.conv_proj_kv.conv(x)))
    query, key, value = (
        part.flatten(2)
        .unflatten(1, (layers.num_heads, -1))
        .transpose(2, 3)
        .reshape(batch * layers.num_heads, -1, part.shape[1] // layers.num_heads)
        for part in (query, *both.chunk(2, 1))
    )
    weights = layers.attn_drop((torch.einsum("bid,bjd->bij", query, key) * layers.scale).softmax(-1))
    x = torch.einsum("bij,bjd->bid", weights, value)
    x = x.unflatten(0, (batch, -1)).transpose(2, 3).flatten(1, 2).unflatten(2, (height, width))
    return layers.proj_drop(pointwise(layers.proj, x))


def mlp(layers: Any, x: Tensor) -> Tensor:
    """Return the map after two 1x1 convolutions with a GELU between them."""
    x = layers.drop1(functional.gelu(pointwise(layers.fc1, x)))
    return layers.drop2(pointwise(layers.fc2, x))
