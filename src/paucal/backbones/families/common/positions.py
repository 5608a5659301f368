"""Resampling of learned position embeddings for images of other sizes.

A model family uses one bicubic filter in all cases: for checkpoints, in `set_input_size`, and in forward passes with
images of another size.

- The papers' families (`antialias_positions = False`: LV-ViT, DHVT, T2T-ViT, EsViT's transformers) do not use
  antialiasing, as in their published code.
- timm's models, and paucal's variants of timm's models, use antialiasing, as in timm. Antialiasing also changes the
  resampling kernel, so the results differ even if a table is enlarged.
"""

import math
from collections.abc import Mapping

from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

Size = tuple[int, int]


def uses_antialiasing(model: nn.Module) -> bool:
    """Return whether the position embeddings of a model's family are resampled with antialiasing."""
    return bool(getattr(model, "antialias_positions", True))


def resample_positions(
    table: Tensor, old_grid: Size, new_grid: Size, prefix: int = 1, antialias: bool = False
) -> Tensor:
    """Resample a position embedding (1, P + H * W, C) to another grid; the entries of P prefix tokens do not change."""
    return resample_abs_pos_embed(table, list(new_grid), list(old_grid), num_prefix_tokens=prefix, antialias=antialias)


def resample_parameter(positions: nn.Parameter, old_grid: Size, new_grid: Size, prefix: int = 1) -> nn.Parameter:
    """Return a model's position embedding for another grid; the same parameter if the grid is the same."""
    if old_grid == new_grid:
        return positions
    table = resample_positions(positions.detach(), old_grid, new_grid, prefix)
    return nn.Parameter(table.clone(), requires_grad=positions.requires_grad)


def fit_position_embedding(state: Mapping[str, Tensor], model_table: Tensor, grid: Size) -> dict[str, Tensor]:
    """Return a state dict in which the position embedding "pos_embed" is resampled from a square grid to the model's.

    The embedding is not changed if it has the model's shape or does not belong to a square grid with a class token.
    `model_table` is the model's position embedding (1, 1 + H * W, C) for the grid (H, W).
    """
    table = state.get("pos_embed")
    if table is None or table.ndim != 3 or table.shape[1] < 2 or table.shape == model_table.shape:
        return dict(state)
    side = math.isqrt(table.shape[1] - 1)
    if side * side != table.shape[1] - 1 or table.shape[2] != model_table.shape[2]:
        return dict(state)
    return {**state, "pos_embed": resample_positions(table, (side, side), grid)}


def record_input_size(model: nn.Module, img_size: Size) -> None:
    """Record a new image size in timm's configuration of the model, from which timm rebuilds a saved model."""
    try:
        from timm.models._input import update_model_input_size
    except ImportError:  # an older timm, which always saves the original configuration
        return
    update_model_input_size(model, img_size)
