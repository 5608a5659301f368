"""DHVT as its published program computes it; images must be square."""

import math
from typing import Any

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """A DHVT of ours with all of the paper's parts, computed from its parameters layer by layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of images (B, 3, H, W)."""
        model: Any = self.model
        stem = model.patch_embed
        cells = affine(stem.post_affine, stem.proj(affine(stem.pre_affine, images))).flatten(2).transpose(1, 2)
        x = torch.cat((model.cls_token.expand(len(images), -1, -1), cells), 1)
        for block in model.blocks:
            x = x + block.drop_path(attention(block.attn, block.norm1(x)))
            x = x + block.drop_path(feed_forward(block.mlp, block.norm2(x)))
        return model.head(model.norm(x)[:, 0])


def affine(layer: Any, x: Tensor) -> Tensor:
    """Return the map with its channels scaled and shifted."""
    return layer.alpha * x + layer.beta


def attention(layers: Any, x: Tensor) -> Tensor:
    """Return the tokens after attention that head tokens join: one per head, built again in every block."""
    batch, count, width = x.shape
    heads, depth = layers.num_heads, width // layers.num_heads
    means = x.reshape(batch, count, heads, depth).permute(0, 2, 1, 3).mean(2)
    head_tokens = layers.ht_proj(means).reshape(batch, heads, heads, depth)
    head_tokens = layers.act(layers.ht_norm(head_tokens)).flatten(2) + layers.pos_embed
    x = torch.cat((x, head_tokens), 1)
    query, key, value = layers.qkv(x).reshape(batch, count + heads, 3, heads, depth).permute(2, 0, 3, 1, 4)
    weights = query @ key.transpose(-2, -1) * layers.scale
    weights = layers.attn_drop(weights.softmax(-1))
    x = layers.proj((weights @ value).transpose(1, 2).reshape(batch, count + heads, width))
    of_class, cells, head_tokens = x.split((1, count - 1, heads), 1)
    x = torch.cat((of_class + head_tokens.mean(1, keepdim=True), cells), 1)
    return layers.proj_drop(x)


def feed_forward(layers: Any, x: Tensor) -> Tensor:
    """Return the tokens after three convolutions on the map of cells; the mean cell scales the class token."""
    batch, count, width = x.shape
    side = math.isqrt(count - 1)
    of_class, cells = x.split((1, count - 1), 1)
    x = cells.reshape(batch, side, side, width).permute(0, 3, 1, 2)
    x = layers.act(layers.bn1(layers.conv1(x)))
    x = x + layers.act(layers.bn2(layers.conv2(x)))
    x = layers.bn3(layers.conv3(x))
    gate = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
    gate = layers.excitation(layers.act(layers.compress(gate))).unsqueeze(1)
    return torch.cat((of_class * gate, x.flatten(2).transpose(1, 2)), 1)
