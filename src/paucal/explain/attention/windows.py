"""Which cells lie in which window, for every family that attends within windows.

A map of indices is cut into windows as the family cuts its features, so that shifts and padding are its own.
"""

import math
from typing import Any, NamedTuple

import torch
from timm.models.davit import SpatialBlock
from timm.models.gcvit import GlobalContextVitBlock
from timm.models.maxxvit import PartitionAttention2d, PartitionAttentionCl, grid_partition
from timm.models.maxxvit import window_partition as maxvit_partition
from timm.models.nest import Attention as NestAttention
from timm.models.nest import blockify
from timm.models.swin_transformer import SwinTransformerBlock, window_partition
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from timm.models.swin_transformer_v2_cr import SwinTransformerV2CrBlock
from timm.models.tiny_vit import TinyVitBlock
from timm.models.twins import LocallyGroupedAttn
from timm.models.vision_transformer_sam import Block as SamBlock
from torch import Tensor
from torch.nn import functional

from paucal.backbones.families.common.windows import lay_out
from paucal.backbones.families.cvt_esvit import WindowAttention, partition, window_of
from paucal.backbones.families.swin_esvit import PaddedSwinBlock
from paucal.explain.attention.calls import Call
from paucal.explain.attention.maps import Size


class Windows(NamedTuple):
    """How a grid is cut.

    Attributes:
        grid: (rows, columns) of the cells.
        places: (windows, cells of each) indices of cells, -1 for padding.
    """

    grid: Size
    places: Tensor


def windows_of(call: Call) -> Windows | None:
    """Return the windows of a layer, or None where it has none that are known."""
    if isinstance(call.block, PaddedSwinBlock):
        return _padded_swin(call)
    if isinstance(call.block, SwinTransformerBlock | SwinTransformerV2Block | SwinTransformerV2CrBlock):
        return _swin(call)
    if isinstance(call.layer, WindowAttention):
        return _cvt(call)
    if isinstance(call.layer, LocallyGroupedAttn):
        return _twins(call)
    if isinstance(call.layer, NestAttention):
        return _nest(call)
    if isinstance(call.block, PartitionAttentionCl | PartitionAttention2d):
        return _maxvit(call)
    if isinstance(call.block, SpatialBlock | GlobalContextVitBlock | TinyVitBlock):
        return _from_the_corner(call)
    if isinstance(call.block, SamBlock) and call.block.window_size:  # others see everything
        return _from_the_corner(call)
    return None


def _padded_swin(call: Call) -> Windows:
    block: Any = call.block
    grid, index = _cells_last(call)
    windows = block.windows(grid)
    return _windows(grid, window_partition(lay_out(index + 1, windows) - 1, windows.window))


def _swin(call: Call) -> Windows:
    block: Any = call.block
    grid, index = _cells_last(call)
    shifted = index.roll(tuple(-steps for steps in block.shift_size), (1, 2))  # timm shifts before it pads
    return _windows(grid, window_partition(_filled(shifted, block.window_size), block.window_size))


def _cvt(call: Call) -> Windows:
    layer: Any = call.layer
    grid = call.inputs[1]
    window = window_of(grid, layer.window_size[0], layer.padding)
    return _windows(grid, partition(_filled(_indices(grid, call.inputs[0]), window), window))


def _twins(call: Call) -> Windows:
    layer: Any = call.layer
    grid, window = (int(call.inputs[1][0]), int(call.inputs[1][1])), (layer.ws, layer.ws)
    return _windows(grid, window_partition(_filled(_indices(grid, call.inputs[0]), window), window))


def _nest(call: Call) -> Windows:
    blocks, cells = call.inputs[0].shape[1:3]
    side = math.isqrt(cells)
    grid = (math.isqrt(blocks) * side, math.isqrt(blocks) * side)
    return _windows(grid, blockify(_indices(grid, call.inputs[0]), side)[0])


def _maxvit(call: Call) -> Windows:
    block: Any = call.block
    shape = call.block_inputs[0].shape
    grid = (shape[2], shape[3]) if isinstance(block, PartitionAttention2d) else (shape[1], shape[2])
    cut = maxvit_partition if block.partition_block else grid_partition
    return _windows(grid, cut(_indices(grid, call.block_inputs[0]), [int(side) for side in block.partition_size]))


def _from_the_corner(call: Call) -> Windows:
    """DaViT, GC ViT, TinyViT and SAM: windows that are not shifted, the last ones padded."""
    block: Any = call.block
    shape, side = call.block_inputs[0].shape, block.window_size
    grid = (shape[2], shape[3]) if isinstance(block, SpatialBlock) else (shape[1], shape[2])
    window = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
    return cut_from_the_corner(grid, window, call.block_inputs[0])


def cut_from_the_corner(grid: Size, window: Size, like: Tensor) -> Windows:
    """Return the windows of a grid, the last ones padded.

    Args:
        grid: (rows, columns) of the cells.
        window: (rows, columns) of one.
        like: on the device that the indices belong on.
    """
    return _windows(grid, window_partition(_filled(_indices(grid, like), window), window))


def _windows(grid: Size, cut: Tensor) -> Windows:
    """Return windows from indices (windows, ...) cut as features are."""
    return Windows(grid, cut.reshape(len(cut), -1))


def _cells_last(call: Call) -> tuple[Size, Tensor]:
    features = call.block_inputs[0]
    grid = (features.shape[1], features.shape[2])
    return grid, _indices(grid, features)


def _filled(index: Tensor, window: Size) -> Tensor:
    """Return indices (1, H, W, 1) with -1 to the right and below, up to whole windows."""
    fill = (0, 0, 0, -index.shape[2] % window[1], 0, -index.shape[1] % window[0])
    return functional.pad(index, fill, value=-1)


def _indices(grid: Size, like: Tensor) -> Tensor:
    """Return the index of every cell as a map (1, H, W, 1)."""
    return torch.arange(grid[0] * grid[1], device=like.device).view(1, *grid, 1)
