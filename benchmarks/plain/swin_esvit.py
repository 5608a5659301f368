"""Swin as EsViT's program computes it: it pads after the norm, and makes the masks on the CPU in every call."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from plain.lvvit import mlp

Size = tuple[int, int]


class Plain(nn.Module):
    """A Swin of ours, padded as published, computed from its parameters layer by layer; images divide into patches."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of images (B, 3, H, W)."""
        model: Any = self.model
        x = model.patch_embed.proj(images)
        size = (x.shape[2], x.shape[3])
        x = model.patch_embed.norm(x.flatten(2).transpose(1, 2))
        for stage in model.layers:
            if not isinstance(stage.downsample, nn.Identity):
                x, size = merged(stage.downsample, x, size)
            for block in stage.blocks:
                x = x + block.drop_path1(shifted_attention(block, block.norm1(x), size))
                x = x + block.drop_path2(mlp(block.mlp, block.norm2(x)))
        x = functional.adaptive_avg_pool1d(model.norm(x).transpose(1, 2), 1).flatten(1)
        return model.head.fc(x)


def merged(layers: Any, x: Tensor, size: Size) -> tuple[Tensor, Size]:
    """Return the tokens of 2x2 neighbours as one, and their (rows, columns)."""
    x = x.unflatten(1, size)
    x = functional.pad(x, (0, 0, 0, size[1] % 2, 0, size[0] % 2))
    x = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], -1)
    return layers.reduction(layers.norm(x.flatten(1, 2))), (x.shape[1], x.shape[2])


def shifted_attention(block: Any, x: Tensor, size: Size) -> Tensor:
    """Return the tokens after attention in windows of the padded and shifted map."""
    window, shift = block.window_size, block.shift_size
    x = functional.pad(x.unflatten(1, size), (0, 0, 0, -size[1] % window[1], 0, -size[0] % window[0]))
    padded = (x.shape[1], x.shape[2])
    mask = None
    if any(shift):
        x = x.roll((-shift[0], -shift[1]), (1, 2))
        mask = mask_of(padded, window, shift).to(x.device)
    cells = attention(block.attn, partition(x, window), mask)
    down, across = padded[0] // window[0], padded[1] // window[1]
    x = cells.reshape(-1, down, across, *window, cells.shape[-1]).transpose(2, 3).reshape(x.shape)
    if any(shift):
        x = x.roll(shift, (1, 2))
    return x[:, : size[0], : size[1]].contiguous().flatten(1, 2)


def partition(x: Tensor, window: Size) -> Tensor:
    """Return the windows (B * windows, cells, C) of a map (B, H, W, C)."""
    rows, columns = window
    return (
        x.unflatten(2, (-1, columns)).unflatten(1, (-1, rows)).transpose(2, 3).reshape(-1, rows * columns, x.shape[-1])
    )


def mask_of(padded: Size, window: Size, shift: Size) -> Tensor:
    """Return the mask (windows, cells, cells) with -100 between cells that only the shift has brought together."""
    region = torch.zeros(1, *padded, 1)
    cuts = [(slice(0, -w), slice(-w, -s), slice(-s, None)) for w, s in zip(window, shift, strict=True)]
    for number, (rows, columns) in enumerate((rows, columns) for rows in cuts[0] for columns in cuts[1]):
        region[:, rows, columns] = number
    cells = partition(region, window).squeeze(2)
    apart = cells[:, None] - cells[:, :, None]
    return apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)


def attention(layers: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the cells (B * windows, N, C) after attention by two products, biases and a softmax."""
    count, cells, width = x.shape
    joint = layers.qkv(x).reshape(count, cells, 3, layers.num_heads, width // layers.num_heads)
    query, key, value = joint.permute(2, 0, 3, 1, 4)
    weights = (query * layers.scale) @ key.transpose(-2, -1)
    bias = layers.relative_position_bias_table[layers.relative_position_index.view(-1)]
    weights = weights + bias.view(cells, cells, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
    if mask is not None:
        weights = weights.view(-1, len(mask), layers.num_heads, cells, cells) + mask[None, :, None]
        weights = weights.view(count, layers.num_heads, cells, cells)
    weights = layers.attn_drop(weights.softmax(-1))
    x = (weights @ value).transpose(1, 2).reshape(count, cells, width)
    return layers.proj_drop(layers.proj(x))
