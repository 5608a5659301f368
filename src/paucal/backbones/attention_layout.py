"""How a family's attention is read: where its weights can be seen, and where in the image queries and keys lie.

A layer's weights say only (batch, heads, queries, keys). Its class, the class of the block around it, or of what holds
the block, says the rest in an attribute `attention_layout`; `timm_attention` declares timm's classes. A class without a
declaration has timm's convention: an attribute `fused_attn`, weights that pass through `attn_drop`, and full attention
over prefix tokens and cells.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paucal.types import UserError

Size = tuple[int, int]
Token = str | tuple[int, int]


@dataclass(frozen=True)
class Tokens:
    """The tokens of a layer: some before the cells, the cells row by row, some behind them.

    Attributes:
        grid: (rows, columns) of the cells.
        prefix: Names of those before, such as "class", "distillation", "register 1".
        suffix: Names of those behind, such as DHVT's "head 1".
    """

    grid: Size
    prefix: tuple[str, ...] = ()
    suffix: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.prefix) + self.cells + len(self.suffix)

    @property
    def cells(self) -> int:
        """How many cells there are."""
        return self.grid[0] * self.grid[1]

    def place(self, token: Token) -> int:
        """Return the index of a token, given as (row, column) or by its name.

        Raises:
            UserError: there is no such token.

        Example:
            >>> Tokens((2, 3), ("class",)).place((1, 2)), Tokens((2, 3), ("class",)).place("class")
            (6, 0)
        """
        rows, columns = self.grid
        if isinstance(token, str):
            if token in self.prefix:
                return self.prefix.index(token)
            if token in self.suffix:
                return len(self.prefix) + self.cells + self.suffix.index(token)
            known = ", ".join((*self.prefix, *self.suffix)) or "none but cells"
            raise UserError(f"there is no token {token!r} here, the layer has {known}: give one, or (row, column).")
        row, column = token
        if not (0 <= row < rows and 0 <= column < columns):
            raise UserError(f"the cell {token} lies outside of the grid of {rows}x{columns} cells: count from 0.")
        return len(self.prefix) + row * columns + column

    def to_grid(self, values: Tensor) -> Tensor:
        """Return the cells' part of (..., tokens) as (..., rows, columns)."""
        first = len(self.prefix)
        return values[..., first : first + self.cells].unflatten(-1, self.grid)


class Call(NamedTuple):
    """What an attention layer and the block around it were called with.

    Attributes:
        modules: The layer, its block, and what holds them, up to the model.
        inputs: Positional arguments of the layer.
        block_inputs: Positional arguments of the block.
    """

    modules: tuple[nn.Module, ...]
    inputs: tuple[Any, ...]
    block_inputs: tuple[Any, ...]

    @property
    def layer(self) -> Any:
        """The attention layer."""
        return self.modules[0]

    @property
    def block(self) -> Any:
        """The module that holds the layer."""
        return self.modules[1]

    @property
    def model(self) -> Any:
        """The whole."""
        return self.modules[-1]


class Places(NamedTuple):
    """Where the queries and keys of a layer lie; in groups, for instance windows, whose queries share their keys.

    Attributes:
        tokens: Tokens that the queries belong to.
        key_tokens: Tokens that the keys belong to; the same but for layers that pool them.
        queries: (groups, Q) indices among `tokens`, -1 for padding.
        keys: (groups, K) indices among `key_tokens`, -1 for padding.
    """

    tokens: Tokens
    key_tokens: Tokens
    queries: Tensor
    keys: Tensor


@dataclass(frozen=True)
class AttentionLayout:
    """What a class declares about its attention.

    Attributes:
        weights: Where they can be seen: "fused_attn" for layers that pass them through `attn_drop` while `fused_attn`
            is off, "attn_drop" for those that always do, "softmax" for those whose softmax must be watched.
        places: Returns the places of (call, weights, image size), or None for the usual ones.
        groups_last: Whether weights of five dimensions are (B, heads, groups, Q, K), not (B, groups, heads, Q, K).
        pools: Whether keys, or both, are squares of cells on a coarser grid.
        between_cells: Whether cells attend to each other; not so where channels do.
        suffix: Returns the names of tokens that stand behind the cells.
    """

    weights: Literal["fused_attn", "attn_drop", "softmax"] = "fused_attn"
    places: Callable[[Call, Tensor, Size], Places | None] | None = None
    groups_last: bool = False
    pools: Literal["nothing", "keys", "queries"] = "nothing"
    between_cells: bool = True
    suffix: Callable[[Any], tuple[str, ...]] = lambda layer: ()


def prefix_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Return names for the tokens before the cells, as far as the model tells what they are.

    Example:
        >>> import timm
        >>> prefix_names(timm.create_model("deit_tiny_distilled_patch16_224", depth=1), 2)
        ('class', 'distillation')
    """
    # In models of stages (CvT, ViL) the token belongs to a stage.
    known = [
        word
        for word, attribute in (("class", "cls_token"), ("distillation", "dist_token"))
        if any(getattr(part, attribute, None) is not None for part in model.modules())
    ]
    other = "register" if getattr(model, "reg_token", None) is not None else "token"
    names = [*known, *(f"{other} {number}" for number in range(1, count + 1))]
    return tuple(names[:count])


def window_places(grid: Size, cut: Tensor) -> Places:
    """Return the places of windows from indices of cells (windows, ...) that are cut as features are."""
    places = cut.reshape(len(cut), -1)
    return Places(Tokens(grid), Tokens(grid), places, places)


def cell_indices(grid: Size, like: Tensor) -> Tensor:
    """Return the index of every cell as a map (1, H, W, 1) on the device of a tensor."""
    return torch.arange(grid[0] * grid[1], device=like.device).view(1, *grid, 1)


def fill_up(indices: Tensor, window: Size) -> Tensor:
    """Return indices (1, H, W, 1) with -1 to the right and below, up to whole windows."""
    fill = (0, 0, 0, -indices.shape[2] % window[1], 0, -indices.shape[1] % window[0])
    return functional.pad(indices, fill, value=-1)
