"""Vision Longformer as its published program computes it, with relative positions and shared projections.

Sparse attention cuts the map into chunks; each direction to a neighbour is a roll of the grid of chunks and a product
of its own. Queries, and keys with values, are projections of their own, computed for global tokens once more.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.vil_attention import SparseAttention, VilAttention
from plain.lvvit import mlp

SHIFTS = tuple((down, right) for down in (1, 0, -1) for right in (1, 0, -1))


class Plain(nn.Module):
    """A Vision Longformer of ours in mode "blocks", computed from its parameters; images as large as it is built for.

    Places in the tables of biases are made once, as the program keeps them in buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.places = {layers: places(layers) for layers in model.modules() if isinstance(layers, VilAttention)}

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, K) of images (B, 3, H, W)."""
        model: Any = self.model
        x, tokens, first = images, images, 0
        for stage in model.stages:
            tokens, grid, first = *embedded(stage.embed, x), stage.global_tokens
            for block in stage.blocks:
                attend = sparse_attention if isinstance(block.attn, SparseAttention) else full_attention
                tokens = tokens + block.drop_path1(
                    attend(block.attn, block.norm1(tokens), grid, self.places[block.attn])
                )
                tokens = tokens + block.drop_path2(mlp(block.mlp, block.norm2(tokens)))
            x = tokens[:, first:].transpose(1, 2).unflatten(2, grid)
        return model.head(model.norm(tokens)[:, first:].mean(1))


def places(layers: Any) -> Tensor:
    """Return the places in the table of biases of all pairs of query and key cells."""
    (rows, columns), device = layers.window_size, layers.local_relative_position_bias_table.device
    if isinstance(layers, SparseAttention):
        queries, keys = square(layers.window, device), cells_around(layers.window, device)
    else:
        queries = keys = torch.cartesian_prod(*(torch.arange(side, device=device) for side in (rows, columns)))
    apart = queries[:, None] - keys
    return (apart[..., 0] + rows - 1) * (2 * columns - 1) + apart[..., 1] + columns - 1


def square(side: int, device: torch.device) -> Tensor:
    """Return (row, column) of the cells of a square, (side * side, 2)."""
    return torch.cartesian_prod(*(torch.arange(side, device=device),) * 2)


def cells_around(side: int, device: torch.device) -> Tensor:
    """Return (row, column) of the cells of a chunk's 9 neighbours as seen from its corner, (9 * side * side, 2)."""
    inner = square(side, device)
    return torch.cat([inner - side * inner.new_tensor(shift) for shift in SHIFTS])


def embedded(layers: Any, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Return the tokens (B, g + H * W, C) that a stage begins with, and (H, W)."""
    x = layers.proj(x)
    grid = (x.shape[2], x.shape[3])
    x = layers.norm(x.flatten(2).transpose(1, 2))
    if layers.cls_token is not None:
        x = torch.cat((layers.cls_token.expand(len(x), -1, -1), x), 1)
    return layers.pos_drop(x), grid


def project(layers: Any, x: Tensor, begin: int, end: int) -> Tensor:
    """Return some of queries, keys and values, (parts, B, heads, N, d), by a projection of their own."""
    width = x.shape[2]
    rows = slice(begin * width, end * width)
    bias = None if layers.qkv.bias is None else layers.qkv.bias[rows]
    x = functional.linear(x, layers.qkv.weight[rows], bias)
    return x.unflatten(2, (end - begin, layers.num_heads, -1)).permute(2, 0, 3, 1, 4)


def full_attention(layers: Any, x: Tensor, grid: tuple[int, int], at: Tensor) -> Tensor:
    """Return the tokens after attention of all to all."""
    batch, count, width = x.shape
    first = layers.global_tokens
    query, key, value = project(layers, x, 0, 3)
    weights = (query * layers.scale) @ key.transpose(-2, -1)
    bias = layers.local_relative_position_bias_table[at.flatten()].view(*at.shape, -1).permute(2, 0, 1).contiguous()
    if first:
        to_global = layers.g2l_relative_position_bias[1].unsqueeze(1).expand(-1, count - first, -1)
        bias = torch.cat((global_bias(layers, count - first), torch.cat((to_global, bias), 2)), 1)
    weights = layers.attn_drop((weights + bias.unsqueeze(0)).softmax(-1))
    return layers.proj_drop(layers.proj((weights @ value).transpose(1, 2).reshape(batch, count, width)))


def global_bias(layers: Any, cells: int) -> Tensor:
    """Return the biases (heads, g, g + cells) of global queries."""
    to_cells = layers.g2l_relative_position_bias[0].unsqueeze(2).expand(-1, -1, cells)
    return torch.cat((layers.g2g_relative_position_bias, to_cells), 2)


def sparse_attention(layers: Any, x: Tensor, grid: tuple[int, int], at: Tensor) -> Tensor:
    """Return the tokens after attention of cells to near ones and global tokens, and of global tokens to all."""
    first = layers.global_tokens
    cells = layers.proj_drop(layers.proj(local_attention(layers, x, grid, at)))
    query = project(layers, x[:, :first], 0, 1)[0] * layers.scale
    key, value = project(layers, x, 1, 3)
    weights = query @ key.transpose(-2, -1) + global_bias(layers, x.shape[1] - first)
    weights = layers.to_all.attn_drop(weights.softmax(-1))
    tokens = (weights @ value).transpose(1, 2).reshape(len(x), first, -1)
    return torch.cat((layers.proj_drop(layers.proj(tokens)), cells), 1)


def local_attention(layers: Any, x: Tensor, grid: tuple[int, int], at: Tensor) -> Tensor:
    """Return the cells (B, H * W, C) after attention to global tokens and to their own and the 8 chunks around."""
    first, side = layers.global_tokens, layers.window
    query = (project(layers, x[:, first:], 0, 1)[0] * layers.scale).flatten(0, 1)
    key, value = project(layers, x, 1, 3).flatten(1, 2)
    of_query, of_key, of_value = (chunks(part, grid, side) for part in (query, key[:, first:], value[:, first:]))
    to_global = torch.einsum("bcmnl,btc->bmnlt", of_query, key[:, :first])
    rolled = (of_key.roll(shift, (2, 3)) for shift in SHIFTS)
    to_cells = torch.cat([torch.einsum("bcmnl,bcmnt->bmnlt", of_query, one) for one in rolled], -1)
    bias = layers.local_relative_position_bias_table[at.flatten()].view(*at.shape, -1).permute(2, 0, 1)
    bias = bias.expand(len(x), -1, -1, -1).flatten(0, 1)[:, None, None]
    of_global = layers.g2l_relative_position_bias[1].expand(len(x), -1, -1).flatten(0, 1)[:, None, None, None]
    to_cells = (to_cells + bias).masked_fill(outside(grid, side, x.device), -torch.inf)
    weights = torch.cat((to_global + of_global, to_cells), -1)
    weights = layers.attn_drop((weights - weights.amax(-1, keepdim=True)).softmax(-1))
    weights = weights.split((first, *[side * side] * len(SHIFTS)), -1)
    out = torch.einsum("bmnlt,btc->bcmnl", weights[0], value[:, :first])
    for one, shift in zip(weights[1:], SHIFTS, strict=True):
        out = out + torch.einsum("bmnlt,bcmnt->bcmnl", one, of_value.roll(shift, (2, 3)))
    out = out.unflatten(4, (side, side)).permute(0, 2, 4, 3, 5, 1).flatten(1, 2).flatten(2, 3)
    return out[:, : grid[0], : grid[1]].reshape(len(x), layers.num_heads, -1, out.shape[-1]).transpose(1, 2).flatten(2)


def chunks(tokens: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Return cells (B, H * W, d) padded and cut into chunks, (B, d, rows, columns, side * side)."""
    cells = functional.pad(tokens.transpose(1, 2).unflatten(2, grid), (0, -grid[1] % side, 0, -grid[0] % side))
    return cells.unflatten(3, (-1, side)).unflatten(2, (-1, side)).transpose(3, 4).flatten(4)


def outside(grid: tuple[int, int], side: int, device: torch.device) -> Tensor:
    """Return which keys of each chunk lie outside the map, (rows, columns, 1, 9 * side * side)."""
    rows, columns = (-(-length // side) for length in grid)
    corners = torch.cartesian_prod(torch.arange(rows, device=device), torch.arange(columns, device=device)) * side
    cells = corners[:, None] + cells_around(side, device)
    return ((cells < 0) | (cells >= cells.new_tensor(grid))).any(-1).view(rows, columns, 1, -1)
