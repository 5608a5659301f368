"""LV-ViT as its published program computes it; MixToken, which nothing here uses, left out."""

from typing import Any

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """An LV-ViT of ours, computed from its parameters layer by layer; logits as in evaluation, in both modes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of images (B, 3, H, W)."""
        model: Any = self.model
        cells = stem(model.patch_embed, images).flatten(2).transpose(1, 2)
        x = torch.cat((model.cls_token.expand(len(images), -1, -1), cells), 1)
        x = x + model.pos_embed
        for one in model.blocks:
            x = block(one, x)
        x = model.norm(x)
        of_class = model.head(x[:, 0])
        if model.aux_head is None:
            return of_class
        return of_class + model.aux_weight * model.aux_head(x[:, 1:]).max(1).values


def stem(layers: Any, x: Tensor) -> Tensor:
    """Return the map of cells: convolutions with batch norm and ReLU, then one that cuts patches."""
    for number in range(1, layers.count + 1):
        x = getattr(layers, f"bn{number}")(getattr(layers, f"conv{number}")(x))
        x = torch.relu_(x)  # in place there too
    return layers.proj(x)


def block(layers: Any, x: Tensor) -> Tensor:
    """Return x + attention(norm(x)) / s, then x + MLP(norm(x)) / s; the division is a step of its own."""
    divisor = 1 / layers.branch_scale
    x = x + layers.drop_path1(attention(layers.attn, layers.norm1(x))) / divisor
    return x + layers.drop_path2(mlp(layers.mlp, layers.norm2(x))) / divisor


def undivided_block(layers: Any, x: Tensor) -> Tensor:
    """Return x + attention(norm(x)), then x + MLP(norm(x)): the block of a ViT and of T2T-ViT."""
    x = x + layers.drop_path1(attention(layers.attn, layers.norm1(x)))
    return x + layers.drop_path2(mlp(layers.mlp, layers.norm2(x)))


def attention(layers: Any, x: Tensor) -> Tensor:
    """Return the tokens after self-attention by two products and a softmax; the queries are scaled."""
    batch, count, width = x.shape
    joint = layers.qkv(x).reshape(batch, count, 3, layers.num_heads, width // layers.num_heads)
    query, key, value = joint.permute(2, 0, 3, 1, 4)
    weights = (query * layers.scale) @ key.transpose(-2, -1)
    weights = layers.attn_drop(weights.softmax(-1))
    x = (weights @ value).transpose(1, 2).reshape(batch, count, width)
    return layers.proj_drop(layers.proj(x))


def mlp(layers: Any, x: Tensor) -> Tensor:
    """Return the tokens after two linear layers with a GELU between them."""
    x = layers.drop1(layers.act(layers.fc1(x)))
    return layers.drop2(layers.fc2(x))
