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
from typing import Any, Literal, get_args

import torch
from timm.layers.config import use_fused_attn
from timm.layers.pos_embed_rel import gen_relative_position_index
from timm.layers.weight_init import trunc_normal_
from timm.models import generate_default_cfgs
from timm.models.swin_transformer import window_partition, window_reverse
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.attention_layout import AttentionCall, AttentionGroups, AttentionLayout, unshifted_window_groups
from paucal.backbones.families.common.attention import attend, cached_on_device, join_heads, split_heads
from paucal.backbones.families.common.contract import DEIT_CROP_RATIO, make_default_cfg, register_variants, to_tokens
from paucal.backbones.families.cvt import ConvEmbed, CvtBackbone, DepthwiseNorm, Grid, as_map, make_norm, rename_tensors

Padding = Literal["published", "masked", "shrunk"]


def choose_window(grid: Grid, max_side: int, padding: Padding) -> Grid:
    """Return the (rows, columns) of a window for a grid.

    With "published" and "masked" padding, windows are squares whose side is the smaller of `max_side` and the grid's
    shorter side. With "shrunk" padding, there are as many windows along each side of the grid as for `max_side`, but
    windows are as small as this number allows.
    """
    if padding != "shrunk":
        side = min(max_side, *grid)
        return side, side
    rows, columns = (-(-side // -(-side // max_side)) for side in grid)
    return rows, columns


@cached_on_device
def padding_bias(grid: Grid, window: Grid, device: torch.device) -> Tensor:
    """Return an attention bias (windows, 1, 1, rows * columns) that is -inf for padded cells and 0 for others."""
    bias = torch.zeros(1, *grid, 1, device=device)
    fill = (0, 0, 0, -grid[1] % window[1], 0, -grid[0] % window[0])
    bias = functional.pad(bias, fill, value=float("-inf"))
    return window_partition(bias, window).flatten(1)[:, None, None]


def _window_groups(call: AttentionCall, weights: Tensor, image_size: Grid) -> AttentionGroups:
    grid = call.inputs[1]
    window = choose_window(grid, call.layer.window_size[0], call.layer.padding)
    return unshifted_window_groups(grid, window, call.inputs[0])


class WindowAttention(nn.Module):
    """Attention within windows; queries, keys and values share a depthwise convolution over the whole map.

    If the sides of a grid are not multiples of the window's sides, `padding` selects how the grid is padded:
    - "published": as in the published code, zeros are added on the right and bottom before the convolution. Cells
      attend to the padding as to other cells, and the padding is part of the batch norm's statistics.
    - "masked": the windows are the same, but cells do not attend to the padding, and the padding is not part of the
      batch norm's statistics.
    - "shrunk": windows are as small as their number allows (`choose_window`), and the remaining padding is masked.

    With `rel_pos_bias`, a learned bias is added for each head and each offset between query and key. Smaller windows
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
            index = gen_relative_position_index(self.window_size)
            self.register_buffer("relative_position_index", index, persistent=False)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the layer to the (B, H * W, C) tokens of a grid (H, W); the shape stays the same."""
        window = choose_window(grid, self.window_size[0], self.padding)
        rows, columns = -grid[0] % window[0], -grid[1] % window[1]  # numbers of padded rows and columns
        fill = (0, 0, 0, columns, 0, rows)
        if (rows or columns) and self.padding == "published":
            cells = functional.pad(x.unflatten(1, grid), fill)
            x = self.conv_proj(cells.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        else:
            x = to_tokens(self.conv_proj(as_map(x, grid))).unflatten(1, grid)
            x = functional.pad(x, fill) if rows or columns else x
        query, key, value = split_heads(self.qkv(window_partition(x, window).flatten(1, 2)), 3, self.num_heads)
        mask_bias = None
        if (rows or columns) and self.padding != "published":
            mask_bias = padding_bias(grid, window, x).repeat(x.shape[0], 1, 1, 1)
        bias = self._position_bias(window, mask_bias)
        x = attend(query, key, value, bias, self.scale, self.fused_attn, self.attn_drop)
        x = window_reverse(join_heads(x), window, grid[0] + rows, grid[1] + columns)
        x = x[:, : grid[0], : grid[1]].flatten(1, 2)
        return self.proj_drop(self.proj(x))

    def _position_bias(self, window: Grid, mask_bias: Tensor | None) -> Tensor | None:
        """Return the relative position bias, if there is one, plus the bias of the mask."""
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
    """A CvT with window attention; the defaults are those of EsViT's CvT-T. See `WindowAttention` for the windows."""

    embed_layer = SizedConvEmbed
    undecayed_names = ("relative_position_bias_table",)

    def __init__(
        self,
        *,
        embed_dims: Sequence[int] = (64, 192, 384, 768),
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: Sequence[int] = (1, 3, 6, 12),
        window_size: int = 7,
        padding: Padding = "published",
        rel_pos_bias: bool = False,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        **arguments: Any,
    ) -> None:
        window_arguments = (window_size, padding, rel_pos_bias, proj_drop_rate, attn_drop_rate)
        super().__init__(
            make_norm=make_norm,
            make_attention=lambda width, heads, is_last: WindowAttention(width, heads, *window_arguments),
            embed_dims=embed_dims,
            depths=depths,
            num_heads=num_heads,
            proj_drop_rate=proj_drop_rate,
            **arguments,
        )
        self.norm = make_norm(embed_dims[-1])
        self.apply(_init_layer)


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
register_variants(__name__, "CvT in EsViT (Li et al. 2022)", EsvitCvt, _VARIANTS, checkpoint_filter_fn)
