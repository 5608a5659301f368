"""Declarations of where a model family computes its attention weights, and which tokens the weights belong to.

Attention weights have the axes (batch, heads, queries, keys). The indices along these axes do not show which patches
(cells of the token grid) the queries and keys belong to. Therefore, the class of the attention layer, of the layer's
block or of a module around the block has an attribute `attention_layout`. `timm_attention` has the layouts of timm's
classes. Without a layout, timm's convention applies: the layer has an attribute `fused_attn`, the weights pass through
its submodule `attn_drop`, and all prefix tokens and cells attend to each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from timm.models.swin_transformer import window_partition
from torch import Tensor, nn
from torch.nn import functional

from paucal.types import UserError

Size = tuple[int, int]
Token = str | tuple[int, int]


@dataclass(frozen=True)
class Tokens:
    """The tokens of a layer: first the prefix tokens, then the cells (patches) row by row, then the suffix tokens."""

    grid: Size  # (rows, columns)
    prefix: tuple[str, ...] = ()  # names of the tokens before the cells, such as "class", "distillation", "register 1"
    suffix: tuple[str, ...] = ()  # names of the tokens after the cells, such as DHVT's "head 1"

    def __len__(self) -> int:
        return len(self.prefix) + self.cells + len(self.suffix)

    @property
    def cells(self) -> int:
        """The number of cells of the grid."""
        return self.grid[0] * self.grid[1]

    def index_of(self, token: Token) -> int:
        """Return the index of a token, given its name or, for a cell, its (row, column).

        Example:
            >>> Tokens((2, 3), ("class",)).index_of((1, 2)), Tokens((2, 3), ("class",)).index_of("class")
            (6, 0)
        """
        rows, columns = self.grid
        if isinstance(token, str):
            if token in self.prefix:
                return self.prefix.index(token)
            if token in self.suffix:
                return len(self.prefix) + self.cells + self.suffix.index(token)
            names = ", ".join((*self.prefix, *self.suffix)) or "none"
            raise UserError(
                f"the layer has no token {token!r}; its named tokens are: {names}. Give one of these names, or a cell "
                "as (row, column)."
            )
        row, column = token
        if not (0 <= row < rows and 0 <= column < columns):
            raise UserError(
                f"the cell {token} is outside the grid of {rows}x{columns} cells; rows and columns count from 0."
            )
        return len(self.prefix) + row * columns + column

    def to_grid(self, values: Tensor) -> Tensor:
        """Return the (..., rows, columns) values of the cells from the (..., tokens) values of all tokens."""
        first = len(self.prefix)
        return values[..., first : first + self.cells].unflatten(-1, self.grid)


class AttentionCall(NamedTuple):
    """The call of an attention layer in a forward pass."""

    modules: tuple[nn.Module, ...]  # the layer, the block that contains it, and all enclosing modules up to the model
    inputs: tuple[Any, ...]  # positional arguments of the layer
    block_inputs: tuple[Any, ...]  # positional arguments of the block

    @property
    def layer(self) -> Any:
        """The attention layer."""
        return self.modules[0]

    @property
    def block(self) -> Any:
        """The module that contains the layer."""
        return self.modules[1]

    @property
    def model(self) -> Any:
        """The model that contains the layer."""
        return self.modules[-1]


class AttentionGroups(NamedTuple):
    """The tokens of a layer's queries and keys, in groups (such as windows) in which all queries have the same keys."""

    tokens: Tokens  # tokens of the queries
    key_tokens: Tokens  # tokens of the keys; equal to `tokens` unless the layer pools keys or queries
    queries: Tensor  # (groups, Q) index in `tokens` of each query, -1 for padding
    keys: Tensor  # (groups, K) index in `key_tokens` of each key, -1 for padding


@dataclass(frozen=True)
class AttentionLayout:
    """How to read the attention weights of a class of layers."""

    # "fused_attn" if the weights pass through `attn_drop` while `fused_attn` is False, "attn_drop" if they always pass
    # through it, "softmax" if the output of the softmax must be intercepted.
    weights: Literal["fused_attn", "attn_drop", "softmax"] = "fused_attn"
    # Returns the groups from (call, weights, image size); None if all tokens are in one group.
    find_groups: Callable[[AttentionCall, Tensor, Size], AttentionGroups | None] | None = None
    groups_last: bool = False  # whether 5-D weights are (B, heads, groups, Q, K), instead of (B, groups, heads, Q, K)
    # Which tokens the layer pools to a coarser grid; "queries" means both queries and keys.
    pools: Literal["nothing", "keys", "queries"] = "nothing"
    between_cells: bool = True  # whether cells attend to each other; False if channels attend to each other
    # Returns the names of the tokens after the cells, given the layer.
    suffix: Callable[[Any], tuple[str, ...]] = lambda layer: ()


def prefix_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Return the names of the first `count` tokens, such as "class" or "register 1"; unknown tokens are "token 1", ...

    Example:
        >>> import timm
        >>> prefix_names(timm.create_model("deit_tiny_distilled_patch16_224", depth=1), 2)
        ('class', 'distillation')
    """
    # All submodules are searched, since the class token of a model with stages (CvT, ViL) is an attribute of a stage.
    names = [
        token_name
        for token_name, attribute in (("class", "cls_token"), ("distillation", "dist_token"))
        if any(getattr(module, attribute, None) is not None for module in model.modules())
    ]
    other_name = "register" if getattr(model, "reg_token", None) is not None else "token"
    return (*names, *(f"{other_name} {number}" for number in range(1, count + 1)))[:count]


def window_groups(grid: Size, windows: Tensor) -> AttentionGroups:
    """Return one group per window, from (windows, ...) indices of the cells in each window."""
    indices = windows.reshape(len(windows), -1)
    return AttentionGroups(Tokens(grid), Tokens(grid), indices, indices)


def cell_indices(grid: Size, like: Tensor) -> Tensor:
    """Return a (1, H, W, 1) map with the index of every cell, on the device of `like`."""
    return torch.arange(grid[0] * grid[1], device=like.device).view(1, *grid, 1)


def pad_indices(indices: Tensor, window: Size) -> Tensor:
    """Pad a (1, H, W, 1) map of indices with -1 on the right and bottom to a multiple of the window's sides."""
    padding = (0, 0, 0, -indices.shape[2] % window[1], 0, -indices.shape[1] % window[0])
    return functional.pad(indices, padding, value=-1)


def unshifted_window_groups(grid: Size, window: Size, like: Tensor) -> AttentionGroups:
    """Return the groups of windows that start at the top left corner; the last windows are padded."""
    return window_groups(grid, window_partition(pad_indices(cell_indices(grid, like), window), window))
