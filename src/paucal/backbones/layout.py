"""Read a timm model's output, whatever its layout, as a grid of cells.

timm's families return (B, N, C) tokens with or without leading class tokens, (B, H, W, C) or (B, C, H, W) maps, or
lists of those. The layout follows from the image size: the cells of a grid are nearly square patches of the image, so a
layout is accepted only where one stride explains both of its sides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Size = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """How to read one tensor as a grid.

    Attributes:
        kind: "tokens" for (B, prefix + H * W, C), row by row; "nhwc" and "nchw" for maps.
        prefix: Leading tokens that belong to no cell.
        height: Rows of the grid.
        width: Columns of the grid.
    """

    kind: Literal["tokens", "nhwc", "nchw"]
    prefix: int
    height: int
    width: int


@dataclass(frozen=True)
class Hints:
    """Facts that decide between several possible layouts of a tensor.

    Attributes:
        channels_last: Whether the model's maps are (B, H, W, C); decides if 24x24 cells have 24 channels.
        sides: (rows, columns) of the model's last grid; tells 2x5 cells with two class tokens from 2x6 cells without
            any.
    """

    channels_last: bool = False
    sides: tuple[int, int] | None = None


NO_HINTS = Hints()


def misfit(height: int, width: int, image_size: Size) -> float | None:
    """Return how far a grid's shape is from the image's, or None where no stride explains both sides.

    The value is zero for the same aspect ratio; padding changes each side by up to one cell.

    Example:
        >>> misfit(14, 14, (224, 224)), misfit(2, 98, (224, 224))
        (0.0, None)
    """
    if height < 1 or width < 1:
        return None
    stride = math.sqrt(image_size[0] * image_size[1] / (height * width))
    if abs(height - image_size[0] / stride) >= 1 or abs(width - image_size[1] / stride) >= 1:
        return None
    return abs(math.log(height * image_size[1] / (width * image_size[0])))


def grid_sides(cells: int, image_size: Size) -> tuple[int, int] | None:
    """Return the rows and columns of a grid of that many cells, or None where the image has no such grid.

    Example:
        >>> grid_sides(24, (64, 96)), grid_sides(197, (224, 224))
        ((4, 6), None)
    """
    if cells < 1:
        return None
    estimate = math.floor(math.sqrt(cells * image_size[0] / image_size[1]))
    best, best_misfit = None, math.inf
    for height in range(max(1, estimate - 1), estimate + 3):
        off = misfit(height, cells // height, image_size) if cells % height == 0 else None
        if off is not None and off < best_misfit:
            best, best_misfit = (height, cells // height), off
    return best


def read_layout(
    shape: Sequence[int], image_size: Size, prefixes: Sequence[int] = (0,), hints: Hints = NO_HINTS
) -> Layout | None:
    """Find the layout that fits the image, or None.

    Args:
        shape: Shape of the tensor, batch first.
        image_size: (height, width) of the images it was computed from, in pixels.
        prefixes: Numbers of leading tokens to consider, the likeliest first.
        hints: Tie-breakers where several layouts fit.

    Example:
        >>> read_layout((2, 197, 192), (224, 224), (1, 0))
        Layout(kind='tokens', prefix=1, height=14, width=14)
    """
    if len(shape) == 4:
        maps = [Layout("nchw", 0, shape[2], shape[3]), Layout("nhwc", 0, shape[1], shape[2])]
        for layout in reversed(maps) if hints.channels_last else maps:
            if misfit(layout.height, layout.width, image_size) is not None:
                return layout
    best, best_misfit = None, math.inf
    for prefix in prefixes if len(shape) == 3 else ():
        sides = grid_sides(shape[1] - prefix, image_size)
        if sides is None:
            continue
        off = misfit(*sides, image_size) if sides != hints.sides else -1.0
        if off is not None and off < best_misfit:
            best, best_misfit = Layout("tokens", prefix, *sides), off
    return best


def last_tensor(output: Any) -> Any:
    """Return the deepest tensor of a model's or block's output: several branches come as a list or tuple."""
    while isinstance(output, list | tuple) and output:
        output = output[-1]
    return output


def to_grid(output: Any, image_size: Size, prefixes: Sequence[int] = (0,), hints: Hints = NO_HINTS) -> Tensor | None:
    """Return an output as (B, D, H, W), or None if it is not a grid; arguments as in `read_layout`."""
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
