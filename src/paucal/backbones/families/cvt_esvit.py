"""The CvT of EsViT ("Efficient Self-supervised Vision Transformers for Representation Learning", ICLR 2022).

EsViT's CvT is not CvT-13. The model has four stages of window attention, with the depths of Swin-T, and no class token.
The mean of the map after the final norm is classified. Queries, keys and values share one depthwise convolution.
Information passes from window to window only through convolutions.

Differences from the published code:
- The relative position bias is looked up by offset. Therefore, the bias also works on grids smaller than the window,
  such as the grids of crops of 96 pixels, for which the published code raises an error. The paper's text describes
  this bias, but the released configuration does not use it.
- `padding` can exclude padded cells from attention; see `WindowAttention`.
- Options without effect (such as shifted windows) do not exist.
- EsViT's larger configuration names a model that does not exist; here, it is registered as `esvit_cvt_small`.
"""

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import torch
from timm.layers.config import use_fused_attn
from timm.layers.drop import calculate_drop_path_rates
from timm.layers.norm import LayerNormFp32
from timm.layers.weight_init import trunc_normal_
from timm.models import generate_default_cfgs
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.attention_layout import (
    AttentionCall,
    AttentionGroups,
    AttentionLayout,
    cell_indices,
    pad_indices,
    window_groups,
)
from paucal.backbones.families.common.attention import attend, join_heads, split_heads
from paucal.backbones.families.common.contract import DEIT_CROP_RATIO, make_default_cfg, register_variants, to_tokens
from paucal.backbones.families.cvt_layers import (
    ConvEmbed,
    CvtBackbone,
    CvtBlock,
    DepthwiseNorm,
    Grid,
    QuickGelu,
    as_map,
    rename_tensors,
    require_valid_sizes,
)

PAPER = "CvT in EsViT (Li et al. 2022)"  # in the table of models

Padding = Literal["published", "masked", "shrunk"]


def choose_window(grid: Grid, max_side: int, padding: Padding) -> Grid:
    """Return the (rows, columns) of a window for a grid.

    With "published" and "masked" padding, windows are squares whose side is the smaller of `max_side` and the grid's
    shorter side. With "shrunk" padding, there are as many windows along each side of the grid as for `max_side`, but
    windows are as small as this number allows.

    Example:
        >>> choose_window((24, 24), 7, "published"), choose_window((24, 24), 7, "shrunk")
        ((7, 7), (6, 6))
        >>> choose_window((3, 5), 7, "shrunk")
        (3, 5)
    """
    if padding != "shrunk":
        side = min(max_side, *grid)
        return side, side
    rows, columns = (-(-side // -(-side // max_side)) for side in grid)
    return rows, columns


def partition_windows(cells: Tensor, window: Grid) -> Tensor:
    """Divide a map (B, H, W, C), whose sides are multiples of the window's, into (B * windows, rows * columns, C)."""
    batch, height, width, channels = cells.shape
    rows, columns = window
    cells = cells.reshape(batch, height // rows, rows, width // columns, columns, channels)
    return cells.transpose(2, 3).reshape(-1, rows * columns, channels)


def join_windows(windows: Tensor, window: Grid, grid: Grid) -> Tensor:
    """Undo `partition_windows`: return the map (B, H, W, C) with the grid (H, W) from its windows."""
    rows, columns = window
    down, across = grid[0] // rows, grid[1] // columns
    cells = windows.reshape(-1, down, across, rows, columns, windows.shape[-1])
    return cells.transpose(2, 3).reshape(-1, *grid, windows.shape[-1])


def padding_bias(grid: Grid, window: Grid, like: Tensor) -> Tensor:
    """Return an attention bias (windows, 1, 1, rows * columns) that is -inf for padded cells and 0 for others.

    The result is cached for the most recent sizes and shared by all models of the process.
    """
    # Do not cache a bias made while tracing or for another tensor type, since it cannot be used elsewhere.
    if torch.compiler.is_compiling() or type(like) is not Tensor:
        return _compute_padding_bias(grid, window, like.device)
    return _cached_padding_bias(grid, window, like.device)


def _compute_padding_bias(grid: Grid, window: Grid, device: torch.device) -> Tensor:
    bias = torch.zeros(1, *grid, 1, device=device)
    fill = (0, 0, 0, -grid[1] % window[1], 0, -grid[0] % window[0])
    return partition_windows(functional.pad(bias, fill, value=float("-inf")), window)[:, None, None, :, 0]


@lru_cache(maxsize=64)
def _cached_padding_bias(grid: Grid, window: Grid, device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():  # so that the bias can also be used outside inference mode
        return _compute_padding_bias(grid, window, device)


def bias_table_indices(side: int) -> Tensor:
    """Return the (side^2, side^2) indices in a bias table for all pairs of a window's cells.

    The table has an entry for each of the (2 side - 1)^2 offsets. Query (i, j) and key (k, l) have the index
    (i - k + side - 1) * (2 side - 1) + (j - l + side - 1).
    """
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    down, across = (position.flatten()[:, None] - position.flatten() + side - 1 for position in (rows, columns))
    return down * (2 * side - 1) + across


def _window_groups(call: AttentionCall, weights: Tensor, image_size: Grid) -> AttentionGroups:
    grid = call.inputs[1]
    window = choose_window(grid, call.layer.window_size[0], call.layer.padding)
    return window_groups(grid, partition_windows(pad_indices(cell_indices(grid, call.inputs[0]), window), window))


class WindowAttention(nn.Module):
    """Attention within windows; queries, keys and values share a depthwise convolution over the whole map.

    If the sides of a grid are not multiples of the window's sides, `padding` selects how the grid is padded:
    - "published": as in the published code, zeros are added on the right and bottom before the convolution. Cells
      attend to the padding as to other cells, and the padding is part of the batch norm's statistics.
    - "masked": the windows are the same, but cells do not attend to the padding, and the padding is not part of the
      batch norm's statistics.
    - "shrunk": windows are as small as their number allows (`choose_window`), and the remaining padding is masked.

    Args:
        window_size: Maximum number of rows and of columns of a window.
        padding: "published", "masked" or "shrunk".
        rel_pos_bias: Whether to add a learned bias for each head and each offset between query and key. Smaller windows
            use the middle of the bias table.
    """

    attention_layout = AttentionLayout(find_groups=_window_groups)
    relative_position_index: Tensor

    def __init__(
        self,
        width: int,
        num_heads: int,
        window_size: int = 7,
        padding: Padding = "published",
        rel_pos_bias: bool = False,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if padding not in get_args(Padding):
            raise ValueError(f"padding is {padding!r}; choose one of {', '.join(get_args(Padding))}")
        if window_size < 1:
            raise ValueError(f"window_size is {window_size}; it must be at least 1")
        self.num_heads = num_heads
        self.window_size = (window_size, window_size)
        self.padding: Padding = padding
        self.scale = width**-0.5
        self.fused_attn = bool(use_fused_attn())
        self.conv_proj = DepthwiseNorm(width, stride=1)
        self.qkv = nn.Linear(width, 3 * width)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(proj_drop)
        self.relative_position_bias_table = None
        if rel_pos_bias:
            self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
            trunc_normal_(self.relative_position_bias_table, std=0.02)
            self.register_buffer("relative_position_index", bias_table_indices(window_size), persistent=False)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the layer to the (B, H * W, C) tokens of a grid (H, W); the shape stays the same."""
        window = choose_window(grid, self.window_size[0], self.padding)
        padding = (-grid[0] % window[0], -grid[1] % window[1])
        padded_grid = (grid[0] + padding[0], grid[1] + padding[1])
        x = self._project_cells(x, grid, padding)
        query, key, value = split_heads(self.qkv(partition_windows(x, window)), 3, self.num_heads)
        mask_bias = padding_bias(grid, window, x) if any(padding) and self.padding != "published" else None
        bias = self._position_bias(window, mask_bias, x.shape[0])
        x = attend(query, key, value, bias, self.scale, self.fused_attn, self.attn_drop)
        x = join_windows(join_heads(x), window, padded_grid)[:, : grid[0], : grid[1]].flatten(1, 2)
        return self.proj_drop(self.proj(x))

    def _project_cells(self, x: Tensor, grid: Grid, padding: Grid) -> Tensor:
        """Return the output of the convolution (B, H', W', C), padded to a multiple of the window."""
        fill = (0, 0, 0, padding[1], 0, padding[0])
        if any(padding) and self.padding == "published":
            x = functional.pad(x.unflatten(1, grid), fill)
            return self.conv_proj(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = to_tokens(self.conv_proj(as_map(x, grid))).unflatten(1, grid)
        return functional.pad(x, fill) if any(padding) else x

    def _position_bias(self, window: Grid, mask_bias: Tensor | None, batch_size: int) -> Tensor | None:
        mask_bias = None if mask_bias is None else mask_bias.repeat(batch_size, 1, 1, 1)
        table = self.relative_position_bias_table
        if table is None:
            return mask_bias
        index, (rows, columns) = self.relative_position_index, window
        if window != self.window_size:
            index = index.unflatten(1, self.window_size).unflatten(0, self.window_size)
            index = index[:rows, :columns, :rows, :columns].reshape(rows * columns, rows * columns)
        bias = table[index].permute(2, 0, 1)[None]
        return bias if mask_bias is None else bias + mask_bias


class SizedConvEmbed(ConvEmbed):
    """A `ConvEmbed` for which `torch.compile` treats the size of a map as a constant and compiles for each size.

    Compiling for all sizes at once takes minutes, and self-distillation has crops of only two sizes.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Return the tokens (B, H * W, width) for a map, and their grid (H, W)."""
        # Converting a side to an int makes torch.compile treat the side as a constant.
        for side in x.shape[2:]:
            operator.index(side)
        return super().forward(x)


class EsvitCvt(CvtBackbone):
    """A CvT with window attention; the defaults are those of EsViT's CvT-T.

    Args:
        global_pool: Input of the classifier: "avg" for the mean of the map, "" for the map.
        window_size: Maximum number of rows and of columns of a window.
        padding: "published", "masked" or "shrunk"; see `WindowAttention`.
        rel_pos_bias: Whether attention has a learned bias for each offset between cells.
        drop_path_rate: Probability that a residual branch of the last block is skipped in training; the probability
            rises linearly from 0 at the first block.
    """

    embed_layer = SizedConvEmbed

    def __init__(  # noqa: PLR0913 (timm's builder passes plain arguments)
        self,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        embed_dims: Sequence[int] = (64, 192, 384, 768),
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: Sequence[int] = (1, 3, 6, 12),
        window_size: int = 7,
        padding: Padding = "published",
        rel_pos_bias: bool = False,
        mlp_ratio: float = 4.0,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        require_valid_sizes(embed_dims, depths, num_heads, mlp_ratio, drop_path_rate)
        rates: Any = calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True)
        make_norm = partial(LayerNormFp32, eps=1e-5)
        window_arguments = (window_size, padding, rel_pos_bias, proj_drop_rate, attn_drop_rate)

        def make_block(stage: int, index: int) -> nn.Module:
            width = embed_dims[stage]
            attn = WindowAttention(width, num_heads[stage], *window_arguments)
            return CvtBlock(width, attn, mlp_ratio, QuickGelu, make_norm, proj_drop_rate, rates[stage][index])

        super().__init__(
            in_chans=in_chans,
            embed_dims=embed_dims,
            depths=depths,
            stem_padding=2,
            make_norm=make_norm,
            make_block=make_block,
            num_classes=num_classes,
            global_pool=global_pool,
            drop_rate=drop_rate,
        )
        self.norm = make_norm(embed_dims[-1])
        self.apply(_init_layer)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: the tables of relative position biases."""
        return {name for name, _ in self.named_parameters() if name.endswith("relative_position_bias_table")}


def _init_layer(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


# The rules map the published names of tensors (regular expressions) to the model's names.
_BLOCK_RULES = {
    r"0\.norm\.": "norm1.",
    r"0\.fn\.qkv\.dw\.": "attn.conv_proj.conv.",
    r"0\.fn\.qkv\.bn\.": "attn.conv_proj.bn.",
    r"0\.fn\.qkv\.pw\.": "attn.qkv.",
    r"0\.fn\.proj_out\.": "attn.proj.",
    r"0\.fn\.rel_pos_bias_table": "attn.relative_position_bias_table",
    r"1\.norm\.": "norm2.",
    r"1\.fn\.net\.0\.": "mlp.fc1.",
    r"1\.fn\.net\.2\.": "mlp.fc2.",
}
_RENAMING_RULES = (
    (r"stage(\d+)\.0\.", r"stages.\1.embed."),
    *(
        (rf"stage(\d+)\.1\.layers\.(\d+)\.{published_name}", rf"stages.\1.blocks.\2.{model_name}")
        for published_name, model_name in _BLOCK_RULES.items()
    ),
)


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Rename the tensors of EsViT's checkpoints to the model's names; drop index tables, which the model computes."""
    return {
        name: value
        for name, value in rename_tensors(state, _RENAMING_RULES).items()
        if not name.endswith(".rel_pos_idx")
    }


_CONFIG = make_default_cfg("stages.0.embed.proj", crop_pct=DEIT_CROP_RATIO, license="mit")
default_cfgs = generate_default_cfgs({"esvit_cvt_tiny": _CONFIG, "esvit_cvt_small": _CONFIG})


_SMALL = {"embed_dims": (64, 128, 256, 512), "depths": (2, 2, 10, 4), "num_heads": (2, 4, 8, 16)}
_VARIANTS = {
    "esvit_cvt_tiny": {"drop_path_rate": 0.1},  # 30.1M parameters, 4.29 GMACs at 224 pixels
    "esvit_cvt_small": {**_SMALL, "drop_path_rate": 0.2},  # has no published weights
}
register_variants(__name__, EsvitCvt, _VARIANTS, checkpoint_filter_fn)
