"""How a family's attention is read: where to find its weights, and where in the image queries and keys lie.

A layer's weights have only the axes (batch, heads, queries, keys). The rest is declared by an attribute
`attention_layout` of the layer's class, of its block's class, or of a class further up; `timm_attention` declares
timm's classes. A class without a declaration follows timm's convention: an attribute `fused_attn`, weights that pass
through `attn_drop`, and full attention over prefix tokens and cells.
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
    """The tokens of a layer: prefix tokens, the cells row by row, suffix tokens.

    Attributes:
        grid: (rows, columns) of the cells.
        prefix: Names of the tokens before the cells, such as "class", "distillation", "register 1".
        suffix: Names of the tokens after the cells, such as DHVT's "head 1".
    """

    grid: Size
    prefix: tuple[str, ...] = ()
    suffix: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.prefix) + self.cells + len(self.suffix)

    @property
    def cells(self) -> int:
        """The number of cells."""
        return self.grid[0] * self.grid[1]

    def place(self, token: Token) -> int:
        """Return the index of a token, given as (row, column) or by its name.

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
            names = ", ".join((*self.prefix, *self.suffix)) or "only cells"
            raise UserError(f"the layer has no token {token!r}; it has {names}: give one of these, or (row, column).")
        row, column = token
        if not (0 <= row < rows and 0 <= column < columns):
            raise UserError(f"the cell {token} lies outside the grid of {rows}x{columns} cells: count from 0.")
        return len(self.prefix) + row * columns + column

    def to_grid(self, values: Tensor) -> Tensor:
        """Return the values of the cells from (..., tokens) as (..., rows, columns)."""
        first = len(self.prefix)
        return values[..., first : first + self.cells].unflatten(-1, self.grid)


class Call(NamedTuple):
    """The arguments that an attention layer and the block around it were called with.

    Attributes:
        modules: The layer, its block, and the modules around them, up to the model.
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
        """The module that contains the layer."""
        return self.modules[1]

    @property
    def model(self) -> Any:
        """The whole model."""
        return self.modules[-1]


class Places(NamedTuple):
    """Where the queries and keys of a layer lie, in groups (such as windows) whose queries share their keys.

    Attributes:
        tokens: Tokens that the queries belong to.
        key_tokens: Tokens that the keys belong to; the same unless the layer pools them.
        queries: (groups, Q) indices among `tokens`, -1 for padding.
        keys: (groups, K) indices among `key_tokens`, -1 for padding.
    """

    tokens: Tokens
    key_tokens: Tokens
    queries: Tensor
    keys: Tensor


@dataclass(frozen=True)
class AttentionLayout:
    """How the attention of a class is read, as the class declares it.

    Attributes:
        weights: Where the weights can be seen: "fused_attn" for layers that pass them through `attn_drop` while
            `fused_attn` is off, "attn_drop" for layers that always do, "softmax" for layers whose softmax must be
            intercepted.
        places: Function of (call, weights, image size) that returns the places; None for all tokens in one group.
        groups_last: Whether weights of five dimensions are (B, heads, groups, Q, K), not (B, groups, heads, Q, K).
        pools: Tokens that are pooled to a coarser grid: nothing, keys, or "queries" for both queries and keys.
        between_cells: Whether cells attend to each other; False where channels do.
        suffix: Function that returns the names of the tokens after the cells.
    """

    weights: Literal["fused_attn", "attn_drop", "softmax"] = "fused_attn"
    places: Callable[[Call, Tensor, Size], Places | None] | None = None
    groups_last: bool = False
    pools: Literal["nothing", "keys", "queries"] = "nothing"
    between_cells: bool = True
    suffix: Callable[[Any], tuple[str, ...]] = lambda layer: ()


def prefix_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Return names for the tokens before the cells, as far as the model's attributes give their kinds.

    Example:
        >>> import timm
        >>> prefix_names(timm.create_model("deit_tiny_distilled_patch16_224", depth=1), 2)
        ('class', 'distillation')
    """
    # In models with stages (CvT, ViL) the token belongs to a stage.
    names = [
        token_name
        for token_name, attribute in (("class", "cls_token"), ("distillation", "dist_token"))
        if any(getattr(part, attribute, None) is not None for part in model.modules())
    ]
    other = "register" if getattr(model, "reg_token", None) is not None else "token"
    return (*names, *(f"{other} {number}" for number in range(1, count + 1)))[:count]


def window_places(grid: Size, cut: Tensor) -> Places:
    """Return the places of windows from cell indices (windows, ...) that were cut like the features."""
    positions = cut.reshape(len(cut), -1)
    return Places(Tokens(grid), Tokens(grid), positions, positions)


def cell_indices(grid: Size, like: Tensor) -> Tensor:
    """Return the index of every cell as a map (1, H, W, 1) on the device of a tensor."""
    return torch.arange(grid[0] * grid[1], device=like.device).view(1, *grid, 1)


def fill_up(indices: Tensor, window: Size) -> Tensor:
    """Pad indices (1, H, W, 1) with -1 on the right and at the bottom to whole windows."""
    fill = (0, 0, 0, -indices.shape[2] % window[1], 0, -indices.shape[1] % window[0])
    return functional.pad(indices, fill, value=-1)
