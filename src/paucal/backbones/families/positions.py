"""Learned position tables of a grid of cells, for images of other sizes."""

import math
from collections.abc import Mapping

from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

Size = tuple[int, int]


def resample_positions(table: Tensor, before: Size, after: Size) -> Tensor:
    """Return a position table (1, 1 + H * W, C) for another grid, its class entry untouched.

    Bicubic without antialiasing, as published programs load checkpoints at higher resolution; timm's default has it
    and gives other values.

    Args:
        table: entries row by row, after the class entry.
        before: (rows, columns) of the table.
        after: (rows, columns) that are wanted.
    """
    return resample_abs_pos_embed(table, list(after), list(before), num_prefix_tokens=1, antialias=False)


def with_fitting_positions(state: Mapping[str, Tensor], own: Tensor, grid: Size) -> dict[str, Tensor]:
    """Return a state dict whose table "pos_embed", made for square images of another size, is resampled.

    A table that fits already, or is none of a square grid with a class entry, is left alone.

    Args:
        state: tensors by name.
        own: the model's table (1, 1 + H * W, C).
        grid: its (rows, columns).
    """
    table = state.get("pos_embed")
    if table is None or table.ndim != 3 or table.shape[1] < 2 or table.shape == own.shape:
        return dict(state)
    side = math.isqrt(table.shape[1] - 1)
    if side * side != table.shape[1] - 1 or table.shape[2] != own.shape[2]:
        return dict(state)
    return {**state, "pos_embed": resample_positions(table, (side, side), grid)}


def record_input_size(model: nn.Module, img_size: Size) -> None:
    """Tell timm about a change of size, so that it saves with a model what would build it again."""
    try:
        from timm.models._input import update_model_input_size
    except ImportError:  # older versions save only what the model was built with
        return
    update_model_input_size(model, img_size)
