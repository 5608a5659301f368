"""Resample learned position tables for images of other sizes; all families do so through this module.

Each family uses one filter everywhere: for checkpoints of square and other grids, in `set_input_size`, and for images
of other sizes in a forward pass. All filters are bicubic:

- the papers' families (`antialias_positions = False`: LV-ViT, DHVT, T2T-ViT, EsViT's transformers) without
  antialiasing, as in their published code;
- timm's own models, and our variants of them in other sizes: with antialiasing, as in timm. It also changes timm's
  kernel, so enlarged tables differ too.
"""

import math
from collections.abc import Mapping

from timm.layers.pos_embed import resample_abs_pos_embed, resample_abs_pos_embed_nhwc
from torch import Tensor, nn

Size = tuple[int, int]


def antialiases(model: nn.Module) -> bool:
    """Return whether the position tables of a model's family are resampled with antialiasing."""
    return bool(getattr(model, "antialias_positions", True))


def resample_positions(table: Tensor, before: Size, after: Size, prefix: int = 1, antialias: bool = False) -> Tensor:
    """Return a position table (1, P + H * W, C) for another grid, its first P entries untouched.

    Args:
        table: Entries row by row, after those of the prefix tokens.
        before: (rows, columns) of the table.
        after: (rows, columns) wanted.
        prefix: P, the number of entries that stand for no cell.
        antialias: The family's choice, see `antialiases`.
    """
    return resample_abs_pos_embed(table, list(after), list(before), num_prefix_tokens=prefix, antialias=antialias)


def resample_map(table: Tensor, after: Size, antialias: bool) -> Tensor:
    """Return a map of positions (1, H, W, C) for another grid (rows, columns)."""
    return resample_abs_pos_embed_nhwc(table, list(after), antialias=antialias)


def with_fitting_positions(state: Mapping[str, Tensor], own: Tensor, grid: Size) -> dict[str, Tensor]:
    """Return a state dict whose table "pos_embed", made for square images of another size, is resampled.

    A table that fits already, or is not that of a square grid with a class entry, is left alone.

    Args:
        state: Tensors by name.
        own: The model's table (1, 1 + H * W, C).
        grid: Its (rows, columns).
    """
    table = state.get("pos_embed")
    if table is None or table.ndim != 3 or table.shape[1] < 2 or table.shape == own.shape:
        return dict(state)
    side = math.isqrt(table.shape[1] - 1)
    if side * side != table.shape[1] - 1 or table.shape[2] != own.shape[2]:
        return dict(state)
    return {**state, "pos_embed": resample_positions(table, (side, side), grid)}


def record_input_size(model: nn.Module, img_size: Size) -> None:
    """Tell timm about a change of size, so that it saves the arguments that rebuild the model."""
    try:
        from timm.models._input import update_model_input_size
    except ImportError:  # older versions save only what the model was built with
        return
    update_model_input_size(model, img_size)
