"""CvT as its authors' program computes it: tokens become a map and tokens again around every convolution."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Plain(nn.Module):
    """A CvT of ours, computed from its parameters layer by layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of images (B, 3, H, W)."""
        model: Any = self.model
        x, of_class = images, None
        for stage in model.stages:
            x, of_class = run_stage(stage, x)
        assert of_class is not None
        return model.head(norm(model.norm, of_class)[:, 0])


def norm(layer: Any, x: Tensor) -> Tensor:
    """Return the tokens normed in float32."""
    return functional.layer_norm(x.float(), layer.normalized_shape, layer.weight, layer.bias, layer.eps).to(x.dtype)


def as_tokens(x: Tensor) -> Tensor:
    """Return a map (B, C, H, W) as tokens (B, H * W, C)."""
    return x.flatten(2).transpose(1, 2)


def as_map(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return tokens (B, H * W, C) as a map (B, C, H, W)."""
    return x.transpose(1, 2).unflatten(2, grid)


def embedded(layers: Any, x: Tensor) -> Tensor:
    """Return the map (B, C, H, W) that a stage begins with."""
    x = layers.proj(x)
    return as_map(norm(layers.norm, as_tokens(x)), (x.shape[2], x.shape[3]))


def run_stage(stage: Any, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the map of a stage, and its class token (B, 1, C) where it has one."""
    x = embedded(stage.embed, x)
    grid, prefix = (x.shape[2], x.shape[3]), int(stage.cls_token is not None)
    x = as_tokens(x)
    if prefix:
        x = torch.cat((stage.cls_token.expand(len(x), -1, -1), x), 1)
    for block in stage.blocks:
        x = x + block.drop_path(attention(block.attn, norm(block.norm1, x), grid))
        x = x + block.drop_path(mlp(block.mlp, norm(block.norm2, x)))
    of_class, cells = x.split((prefix, x.shape[1] - prefix), 1)
    return as_map(cells, grid), of_class if prefix else None


def attention(layers: Any, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return the tokens after attention; the class token bypasses the convolutions."""
    prefix = layers.num_prefix_tokens
    of_class, cells = x.split((prefix, x.shape[1] - prefix), 1)
    cells = as_map(cells, grid)
    query, key, value = (
        torch.cat((of_class, as_tokens(part.bn(part.conv(cells)))), 1)
        if prefix
        else as_tokens(part.bn(part.conv(cells)))
        for part in (layers.conv_proj_q, layers.conv_proj_k, layers.conv_proj_v)
    )
    query, key, value = (
        project(part).unflatten(2, (layers.num_heads, -1)).transpose(1, 2)
        for project, part in ((layers.proj_q, query), (layers.proj_k, key), (layers.proj_v, value))
    )
    weights = torch.einsum("bhlk,bhtk->bhlt", query, key) * layers.scale
    weights = layers.attn_drop(weights.softmax(-1))
    x = torch.einsum("bhlt,bhtv->bhlv", weights, value).transpose(1, 2).flatten(2)
    return layers.proj_drop(layers.proj(x))


def mlp(layers: Any, x: Tensor) -> Tensor:
    """Return the tokens after two linear layers with a quick GELU between them."""
    x = layers.fc1(x)
    x = layers.drop1(x * torch.sigmoid(1.702 * x))
    return layers.drop2(layers.fc2(x))
