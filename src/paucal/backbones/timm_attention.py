"""The attention layouts of timm's model families, since timm's classes do not declare their layouts.

To find the cells of each window, a map of cell indices is divided into windows with the family's own functions, with
the same shifts and padding as the features.
"""

import math
from collections.abc import Mapping

import torch
from timm.models.convit import GPSA, MHSA
from timm.models.davit import SpatialBlock
from timm.models.davit import WindowAttention as DaVitAttention
from timm.models.efficientformer import Attention as EfficientFormerAttention
from timm.models.efficientformer_v2 import Attention2d, Attention2dDownsample
from timm.models.gcvit import GlobalContextVitBlock, WindowAttentionGlobal
from timm.models.hiera import Hiera, MaskUnitAttention
from timm.models.hieradet_sam2 import MultiScaleAttention as Sam2Attention
from timm.models.levit import Attention as LeVitAttention
from timm.models.levit import AttentionDownsample
from timm.models.maxxvit import PartitionAttention2d, PartitionAttentionCl, grid_partition
from timm.models.maxxvit import window_partition as maxvit_partition
from timm.models.mobilevit import MobileVitBlock
from timm.models.mvitv2 import MultiScaleAttention, MultiScaleAttentionPoolFirst
from timm.models.nest import Attention as NestAttention
from timm.models.nest import blockify
from timm.models.pvt_v2 import Attention as PvtAttention
from timm.models.shvit import SHSA
from timm.models.swin_transformer import SwinTransformerBlock, window_partition
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from timm.models.swin_transformer_v2 import WindowAttention as SwinV2Attention
from timm.models.swin_transformer_v2_cr import SwinTransformerV2CrBlock, WindowMultiHeadAttention
from timm.models.tiny_vit import Attention as TinyVitAttention
from timm.models.tiny_vit import TinyVitBlock
from timm.models.tnt import Attention as TntAttention
from timm.models.twins import GlobalSubSampleAttn, LocallyGroupedAttn
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_sam import Block as SamBlock
from timm.models.xcit import XCA
from torch import Tensor, nn

from paucal.backbones.attention_layout import (
    AttentionCall,
    AttentionGroups,
    AttentionLayout,
    Size,
    Tokens,
    cell_indices,
    pad_indices,
    unshifted_window_groups,
    window_groups,
)
from paucal.backbones.layout import grid_sides


def layout_of(module: nn.Module) -> AttentionLayout:
    """Return how to read a module's attention, as declared by its class, by a base class or in `TIMM_LAYOUTS`."""
    declared = getattr(module, "attention_layout", None)
    if isinstance(declared, AttentionLayout):
        return declared
    return next((TIMM_LAYOUTS[base] for base in type(module).__mro__ if base in TIMM_LAYOUTS), AttentionLayout())


def relevance_family(model: nn.Module) -> str | None:
    """Return the family of models whose relevance-propagation rules apply to a model; None if there are no rules."""
    declared = getattr(model, "relevance_family", None)
    return "vit" if declared is None and isinstance(model, VisionTransformer) else declared


def _swin_groups(call: AttentionCall, weights: Tensor, image_size: Size) -> AttentionGroups:
    features, window = call.block_inputs[0], call.block.window_size
    grid = (features.shape[1], features.shape[2])
    shifts = tuple(-steps for steps in call.block.shift_size)
    shifted = cell_indices(grid, features).roll(shifts, (1, 2))  # timm also shifts the map before padding it
    return window_groups(grid, window_partition(pad_indices(shifted, window), window))


def _twins_groups(call: AttentionCall, weights: Tensor, image_size: Size) -> AttentionGroups:
    grid, side = (int(call.inputs[1][0]), int(call.inputs[1][1])), call.layer.ws
    return unshifted_window_groups(grid, (side, side), call.inputs[0])


def _nest_groups(call: AttentionCall, weights: Tensor, image_size: Size) -> AttentionGroups:
    blocks, cells = call.inputs[0].shape[1:3]
    side = math.isqrt(cells)
    grid = (math.isqrt(blocks) * side, math.isqrt(blocks) * side)
    return window_groups(grid, blockify(cell_indices(grid, call.inputs[0]), side)[0])


def _maxvit_groups(call: AttentionCall, weights: Tensor, image_size: Size) -> AttentionGroups:
    block, features = call.block, call.block_inputs[0]
    shape = features.shape[2:] if isinstance(block, PartitionAttention2d) else features.shape[1:3]
    partition = maxvit_partition if block.partition_block else grid_partition
    grid = (shape[0], shape[1])
    return window_groups(grid, partition(cell_indices(grid, features), [int(side) for side in block.partition_size]))


def _plain_window_groups(call: AttentionCall, weights: Tensor, image_size: Size) -> AttentionGroups | None:
    """Return the groups of DaViT, GC ViT, TinyViT and SAM: windows without shift, padded at the right and bottom."""
    features, side = call.block_inputs[0], call.block.window_size
    if not side:  # a block of SAM with global attention
        return None
    shape = features.shape[2:] if isinstance(call.block, SpatialBlock) else features.shape[1:3]
    window = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
    return unshifted_window_groups((shape[0], shape[1]), window, features)


def _sam2_groups(call: AttentionCall, weights: Tensor, image_size: Size) -> AttentionGroups:
    """Return the groups of SAM 2's Hiera, which pools queries within windows (Ravi et al. 2024).

    Padded positions also have keys, and a query may be pooled from cells and padding together.
    """
    block, features = call.block, call.block_inputs[0]
    rows, columns = int(features.shape[1]), int(features.shape[2])
    window = tuple(block.window_size) if block.is_windowed else (rows, columns)
    keys = unshifted_window_groups((rows, columns), window, features)
    down, right = block.q_stride or (1, 1)
    # The pooled map is cropped to the size of the shortcut's map: each side is divided by the stride and rounded down.
    queries = unshifted_window_groups(
        (rows // down, columns // right), (window[0] // down, window[1] // right), features
    )
    return AttentionGroups(queries.tokens, keys.tokens, queries.queries, keys.keys)


def _mobilevit_groups(call: AttentionCall, weights: Tensor, image_size: Size) -> AttentionGroups | None:
    """Return the groups of MobileViT (Mehta and Rastegari 2022).

    The map is divided into small patches, and the cells at the same position of all patches attend to each other. The
    weights are (B * cells per patch, heads, patches, patches).
    """
    block = next(module for module in call.modules if isinstance(module, MobileVitBlock))
    patches = grid_sides(weights.shape[-1], image_size)
    if patches is None:
        return None
    height, width = (int(side) for side in block.patch_size)  # type: ignore[union-attr]
    grid = (patches[0] * height, patches[1] * width)
    index = torch.arange(grid[0] * grid[1], device=weights.device).view(patches[0], height, patches[1], width)
    return window_groups(grid, index.permute(1, 3, 0, 2).reshape(height * width, -1))


def _hiera_groups(call: AttentionCall, weights: Tensor, image_size: Size) -> AttentionGroups:
    """Return the groups of Hiera (Ryali et al. 2023), whose tokens are ordered so that neighbours can be pooled.

    The four cells that are pooled to one token are a quarter of the sequence apart. With n mask units (windows), every
    n-th token belongs to the same mask unit. Here, the indices of the cells are reordered and pooled like the tokens.
    The weights have the shape (B, heads, units, Q, K), or (B, heads, Q, K) if all tokens attend to each other.
    """
    hiera = next(module for module in call.model.modules() if isinstance(module, Hiera))
    rows, columns = (int(side) for side in hiera.tokens_spatial_shape)
    indices = torch.arange(rows * columns, device=weights.device).view(1, -1, 1)
    keys = queries = ((rows, columns), hiera.unroll(indices).flatten())  # (grid, index in the grid of each token)
    for block in hiera.blocks:
        keys = queries
        if block.attn.q_stride > 1:  # type: ignore[union-attr, operator]
            (height, width), cells = keys
            down, right = hiera.q_stride
            first_cells = cells[: len(cells) // (down * right)]  # the first of the cells that are pooled to each token
            pooled_grid = (height // down, width // right)
            pooled_cells = first_cells // width // down * pooled_grid[1] + first_cells % width // right
            queries = (pooled_grid, pooled_cells)
        if block.attn is call.layer:
            break
    units = weights.shape[2] if weights.ndim == 5 else 1
    return AttentionGroups(Tokens(queries[0]), Tokens(keys[0]), queries[1].view(-1, units).T, keys[1].view(-1, units).T)


_ATTN_DROP, _SOFTMAX = AttentionLayout("attn_drop"), AttentionLayout("softmax")
_SOFTMAX_POOLS = AttentionLayout("softmax", pools="queries")
_SWIN, _MAXVIT, _UNSHIFTED = (
    AttentionLayout(find_groups=find) for find in (_swin_groups, _maxvit_groups, _plain_window_groups)
)
# The keys are classes of attention layers, or of the blocks around them if the window size is stored in the block.
TIMM_LAYOUTS: Mapping[type[nn.Module], AttentionLayout] = {
    Attention2d: _SOFTMAX_POOLS,
    Attention2dDownsample: _SOFTMAX_POOLS,
    AttentionDownsample: _SOFTMAX_POOLS,
    DaVitAttention: _SOFTMAX,
    EfficientFormerAttention: _SOFTMAX,
    GlobalContextVitBlock: _UNSHIFTED,
    GlobalSubSampleAttn: AttentionLayout(pools="keys"),
    GPSA: _ATTN_DROP,
    LeVitAttention: _SOFTMAX,
    LocallyGroupedAttn: AttentionLayout(find_groups=_twins_groups),
    MaskUnitAttention: AttentionLayout("softmax", _hiera_groups, groups_last=True),
    MHSA: _ATTN_DROP,
    MobileVitBlock: AttentionLayout(find_groups=_mobilevit_groups),
    MultiScaleAttention: _SOFTMAX_POOLS,
    MultiScaleAttentionPoolFirst: _SOFTMAX_POOLS,
    NestAttention: AttentionLayout(find_groups=_nest_groups, groups_last=True),
    PartitionAttention2d: _MAXVIT,
    PartitionAttentionCl: _MAXVIT,
    PvtAttention: AttentionLayout(pools="keys"),
    Sam2Attention: AttentionLayout("softmax", _sam2_groups),
    SamBlock: _UNSHIFTED,
    SHSA: _SOFTMAX,
    SpatialBlock: _UNSHIFTED,
    SwinTransformerBlock: _SWIN,
    SwinTransformerV2Block: _SWIN,
    SwinTransformerV2CrBlock: _SWIN,
    SwinV2Attention: _ATTN_DROP,
    TinyVitAttention: _SOFTMAX,
    TinyVitBlock: _UNSHIFTED,
    TntAttention: _ATTN_DROP,
    WindowAttentionGlobal: _ATTN_DROP,
    WindowMultiHeadAttention: _ATTN_DROP,
    XCA: AttentionLayout(between_cells=False),
}
