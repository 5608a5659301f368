"""The feed-forward networks of DHVT: dynamic aggregation (DAFF), and that of a ViT with the same options."""

from typing import Any

import torch
from torch import Tensor, nn

from paucal.backbones.families.common.contract import to_tokens
from paucal.backbones.families.dhvt.layers import map_norm
from paucal.backbones.families.dhvt.parts import Aggregate, DhvtParts, Local

REDUCTION = 4  # of the two layers that the mean cell passes, for every model of the paper
Grid = tuple[int, int]


def as_map(tokens: Tensor, grid: Grid) -> Tensor:
    """Return tokens (B, H * W, C) as a map (B, C, H, W) without copying, so that its channels lie together."""
    # In this order: a transposed single image has strides that torch does not recognise as channels-last.
    return tokens.reshape(tokens.shape[0], *grid, tokens.shape[2]).permute(0, 3, 1, 2)


def local_mixing(kind: Local, channels: int) -> nn.Module | None:
    """Return what mixes the 3x3 neighbours of each cell, every channel by itself; None for nothing."""
    if kind == "conv":
        return nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
    return nn.AvgPool2d(3, stride=1, padding=1) if kind == "pool" else None


class FeedForward(nn.Module):
    """The ways of the class token around the layers, and the gate; `transform` are the layers.

    Args:
        dim: channels of the tokens.
        parts: the options.
        drop: dropout of the output. (The original takes one for DAFF and ignores it.)
    """

    def __init__(self, dim: int, parts: DhvtParts, drop: float) -> None:
        super().__init__()
        options: dict[str, Any] = parts.feed_forward()
        self.split_cls: bool = options["split_cls"]
        self.shortcut: bool = options["shortcut"]
        self.aggregate: Aggregate = options["aggregate"]
        self.act = nn.GELU()
        self.drop = nn.Dropout(drop)
        if self.aggregate != "none":
            self.compress = nn.Linear(dim, dim // REDUCTION)
            self.excitation = nn.Linear(dim // REDUCTION, dim)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Return (B, 1 + H * W, C) of tokens (B, 1 + H * W, C) on a grid (H, W), the class token first."""
        parts = (1, x.shape[1] - 1)  # `split` has one gradient for both, where slices would have one each to be added
        if self.split_cls:
            class_token, cells = x.split(parts, 1)
            cells = self.transform(cells, grid)
        elif self.aggregate == "none":
            return self.drop(self.transform(x, grid))
        else:
            class_token, cells = self.transform(x, grid).split(parts, 1)
        if self.aggregate != "none":
            gate = self.excitation(self.act(self.compress(cells.mean(1, keepdim=True))))
            class_token = class_token * gate
            cells = cells * gate if self.aggregate == "all" else cells
        return self.drop(torch.cat((class_token, cells), 1))

    def transform(self, x: Tensor, grid: Grid) -> Tensor:
        """Return the layers' output on the cells, or on the class token and the cells."""
        raise NotImplementedError

    def on_cells(self, x: Tensor, grid: Grid) -> Tensor:
        """Mix the neighbours in hidden features (B, hidden, M, 1) or (B, hidden, H, W); a class token is left out."""
        if self.split_cls:
            return self.mix(x)
        cells = self.mix(x[:, :, 1:, 0].unflatten(2, grid))
        return torch.cat((x[:, :, :1], cells.flatten(2).unsqueeze(3)), 2)

    def mix(self, x: Tensor) -> Tensor:
        """Mix the neighbours in a hidden map (B, hidden, H, W), around which the shortcut may lead."""
        raise NotImplementedError


class Daff(FeedForward):
    """Dynamic aggregation feed-forward (the supplement's section 1.1).

    Convolutions of 1x1, depth-wise 3x3 and 1x1, each with a norm; the shortcut leads around the second. The class
    token goes another way: it is multiplied by what two layers make of the mean output cell, with no sigmoid, so that
    at first it is added nearly nothing.

    Before a batch norm the biases of the convolutions have no effect in training and no gradient but rounding.

    Args:
        dim: channels of the tokens.
        hidden: channels between the outer convolutions.
        parts: the options.
        drop: dropout of the output.
    """

    def __init__(self, dim: int, hidden: int, parts: DhvtParts, drop: float = 0.0) -> None:
        super().__init__(dim, parts, drop)
        self.conv1 = nn.Conv2d(dim, hidden, 1)
        self.bn1 = map_norm(parts.daff_norm, hidden)
        self.conv2 = local_mixing(parts.feed_forward()["local"], hidden)
        self.bn2 = None if self.conv2 is None else map_norm(parts.daff_norm, hidden)
        self.conv3 = nn.Conv2d(hidden, dim, 1)
        self.bn3 = map_norm(parts.daff_norm, dim)

    def transform(self, x: Tensor, grid: Grid) -> Tensor:
        """Return the layers' output on the cells, or on the class token and the cells."""
        x = as_map(x, grid if self.split_cls else (x.shape[1], 1))
        x = self.on_cells(self.act(self.bn1(self.conv1(x))), grid)
        return to_tokens(self.bn3(self.conv3(x)))

    def mix(self, x: Tensor) -> Tensor:
        """Mix the neighbours in a hidden map (B, hidden, H, W)."""
        if self.conv2 is None or self.bn2 is None:
            return x
        mixed = self.act(self.bn2(self.conv2(x)))
        # In place, as no backward pass reads the output of an activation: this is the largest tensor of the model.
        return mixed.add_(x) if self.shortcut else mixed


class PlainFeedForward(FeedForward):
    """The two linear layers of a ViT; the supplement's Table 2 adds the operations of DAFF to it one by one.

    Args:
        dim: channels of the tokens.
        hidden: channels between the layers.
        parts: the options.
        drop: dropout after each layer.
    """

    def __init__(self, dim: int, hidden: int, parts: DhvtParts, drop: float = 0.0) -> None:
        super().__init__(dim, parts, drop)
        self.fc1 = nn.Linear(dim, hidden)
        self.local = local_mixing(parts.feed_forward()["local"], hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def transform(self, x: Tensor, grid: Grid) -> Tensor:
        """Return the layers' output on the cells, or on the class token and the cells."""
        x = self.drop(self.act(self.fc1(x)))
        if self.local is not None:
            cells = as_map(x, grid if self.split_cls else (x.shape[1], 1))
            x = to_tokens(self.on_cells(cells, grid))
        return self.fc2(x)

    def mix(self, x: Tensor) -> Tensor:
        """Mix the neighbours in a hidden map (B, hidden, H, W)."""
        mixed = x if self.local is None else self.local(x)
        return x + mixed if self.shortcut else mixed
