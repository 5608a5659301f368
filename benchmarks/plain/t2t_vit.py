"""T2T-ViT as its published program computes it, with either kind of token layers; images must be square."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from plain.lvvit import mlp, undivided_block


class Plain(nn.Module):
    """A T2T-ViT of ours of patch 16, computed from its parameters layer by layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of images (B, 3, H, W)."""
        model: Any = self.model
        cells = stem(model.tokens_to_token, images)
        x = torch.cat((model.cls_token.expand(len(images), -1, -1), cells), 1)
        x = model.pos_drop(x + model.pos_embed)
        for block in model.blocks:
            x = undivided_block(block, x)
        return model.head(model.norm(x)[:, 0])


def stem(layers: Any, images: Tensor) -> Tensor:
    """Return the tokens (B, N, D): windows are cut from maps with the channels first, and tokens have them last."""
    x = token_layer(layers.attention1, windows(images, 7, 4, 2))
    x = token_layer(layers.attention2, windows(as_map(x), 3, 2, 1))
    return layers.project(windows(as_map(x), 3, 2, 1))


def windows(cells: Tensor, side: int, stride: int, padding: int) -> Tensor:
    """Return the windows (B, N, C * side * side) of a map (B, C, H, W)."""
    return functional.unfold(cells, side, stride=stride, padding=padding).transpose(1, 2)


def as_map(tokens: Tensor) -> Tensor:
    """Return tokens (B, N, C) of a square grid as a map (B, C, H, W)."""
    batch, count, width = tokens.shape
    side = math.isqrt(count)
    return tokens.transpose(1, 2).reshape(batch, width, side, side)


def token_layer(layers: Any, x: Tensor) -> Tensor:
    """Return the tokens (B, N, 64) of windows: attention whose skip connection is the value, then an MLP."""
    if hasattr(layers, "kqv"):
        x = performer(layers, layers.norm1(x))
        return x + layers.mlp(layers.norm2(x))
    x = softmax_attention(layers.attn, layers.norm1(x))
    return x + mlp(layers.mlp, layers.norm2(x))


def performer(layers: Any, x: Tensor) -> Tensor:
    """Return the value plus linear attention by random features, exponentiated as they stand."""
    key, query, value = layers.kqv(x).chunk(3, -1)
    of_key, of_query = features(key, layers.w), features(query, layers.w)
    summed = (of_query @ of_key.sum(1).unsqueeze(2)) + 1e-8
    summary = value.float().transpose(1, 2) @ of_key  # (B, 64, m)
    return value + layers.drop(layers.proj(of_query @ summary.transpose(1, 2) / summed))


def features(x: Tensor, w: Tensor) -> Tensor:
    """Return exp(w x - |x|^2 / 2) / sqrt(m) of tokens (B, N, d), (B, N, m)."""
    half = (x * x).sum(-1, keepdim=True) / 2
    return (x.float() @ w.t() - half).exp() / math.sqrt(len(w))


def softmax_attention(layers: Any, x: Tensor) -> Tensor:
    """Return the value plus softmax attention of one head, which narrows the tokens."""
    batch, count, _ = x.shape
    query, key, value = layers.qkv(x).reshape(batch, count, 3, 1, -1).permute(2, 0, 3, 1, 4)
    weights = layers.attn_drop((query * layers.scale @ key.transpose(-2, -1)).softmax(-1))
    x = (weights @ value).transpose(1, 2).reshape(batch, count, -1)
    return value.squeeze(1) + layers.proj_drop(layers.proj(x))
