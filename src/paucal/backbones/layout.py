"""Converts a timm model's output, whatever its layout, to a grid of cells (spatial positions).

timm's families return (B, N, C) tokens with or without leading class tokens, (B, H, W, C) or (B, C, H, W) maps, or
lists of such tensors. The layout is derived from the image size. Since each cell of a grid belongs to a nearly square
area of the image, only layouts with nearly the same stride in both directions are possible.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Size = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor that is a grid: (B, prefix + H * W, C) tokens row by row, (B, H, W, C) or (B, C, H, W)."""

    kind: Literal["tokens", "nhwc", "nchw"]
    prefix: int  # number of leading tokens that are not cells
    height: int
    width: int


@dataclass(frozen=True)
class LayoutHints:
    """Properties of a model that decide between several possible layouts of a tensor."""

    # Whether the model's maps are (B, H, W, C). A tensor of shape (B, 24, 24, 24) is ambiguous without this hint.
    channels_last: bool = False
    # (rows, columns) of the model's last grid; None if unknown. 12 tokens can be 2 x 5 cells and two class tokens, or
    # 2 x 6 cells without class tokens.
    sides: tuple[int, int] | None = None


NO_HINTS = LayoutHints()  # the axis order and the grid are unknown


def aspect_mismatch(height: int, width: int, image_size: Size) -> float | None:
    """Return the absolute log ratio of the aspect ratios of a grid and an image; None if the grid does not fit.

    The result is 0 for equal aspect ratios. A grid fits an image if the same stride gives both sides of the grid, up to
    one cell of padding per side.

    Example:
        >>> aspect_mismatch(14, 14, (224, 224)), aspect_mismatch(2, 98, (224, 224))
        (0.0, None)
    """
    if height < 1 or width < 1:
        return None
    stride = math.sqrt(image_size[0] * image_size[1] / (height * width))
    if abs(height - image_size[0] / stride) >= 1 or abs(width - image_size[1] / stride) >= 1:
        return None
    return abs(math.log(height * image_size[1] / (width * image_size[0])))


def grid_sides(cells: int, image_size: Size) -> tuple[int, int] | None:
    """Return the (rows, columns) of a grid with this number of cells that fits an image; None if no grid fits."""
    if cells < 1:
        return None
    estimate = math.floor(math.sqrt(cells * image_size[0] / image_size[1]))
    best, best_mismatch = None, math.inf
    for height in range(max(1, estimate - 1), estimate + 3):
        mismatch = aspect_mismatch(height, cells // height, image_size) if cells % height == 0 else None
        if mismatch is not None and mismatch < best_mismatch:
            best, best_mismatch = (height, cells // height), mismatch
    return best


def read_layout(
    shape: Sequence[int], image_size: Size, prefixes: Sequence[int] = (0,), hints: LayoutHints = NO_HINTS
) -> Layout | None:
    """Return the layout of a tensor of features; None if the tensor is not a grid of the image's cells.

    `prefixes` are the possible numbers of leading tokens that are not cells, the most likely first.
    """
    if len(shape) == 4:
        maps = [Layout("nchw", 0, shape[2], shape[3]), Layout("nhwc", 0, shape[1], shape[2])]
        for layout in reversed(maps) if hints.channels_last else maps:
            if aspect_mismatch(layout.height, layout.width, image_size) is not None:
                return layout
    best, best_mismatch = None, math.inf
    for prefix in prefixes if len(shape) == 3 else ():
        sides = grid_sides(shape[1] - prefix, image_size)
        if sides is None:
            continue
        mismatch = aspect_mismatch(*sides, image_size) if sides != hints.sides else -1.0
        if mismatch is not None and mismatch < best_mismatch:
            best, best_mismatch = Layout("tokens", prefix, *sides), mismatch
    return best


def last_tensor(output: Any) -> Any:
    """Return the last tensor of a model's output, which may be a list or tuple, such as one tensor per branch."""
    while isinstance(output, list | tuple) and output:
        output = output[-1]
    return output


def to_grid(
    output: Any, image_size: Size, prefixes: Sequence[int] = (0,), hints: LayoutHints = NO_HINTS
) -> Tensor | None:
    """Return a model's output as a (B, D, H, W) grid; None if the output is not a grid; see `read_layout`."""
    output = last_tensor(output)
    if not isinstance(output, Tensor):
        return None
    layout = read_layout(output.shape, image_size, prefixes, hints)
    if layout is None:
        return None
    if layout.kind == "nchw":
        return output
    if layout.kind == "nhwc":
        return output.permute(0, 3, 1, 2)
    cells = output[:, layout.prefix :].transpose(1, 2)
    return cells.reshape(cells.shape[0], cells.shape[1], layout.height, layout.width)
