"""The CvT of EsViT ("Efficient Self-supervised Vision Transformers for Representation Learning", ICLR 2022).

Another model than CvT-13: four stages of windowed attention, shaped like Swin-T, without class token; the mean of the
cells after the final norm is the feature. Queries, keys and values share one depthwise convolution, and convolutions
alone carry information from window to window.

Differences from the published program:
- The relative bias is read by offset, so that it runs on grids smaller than the window, such as those of crops of 96
  pixels; there, it raises an error. The released configuration has none; the paper's text has one.
- `padding` offers what leaves the padding out of attention; see `WindowAttention`.
- Options of the program that had no effect (windows said to be shifted) are left out.
- The larger configuration, which named a model that did not exist, is registered as `esvit_cvt_small`.
"""

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from timm.layers.drop import calculate_drop_path_rates
from timm.layers.norm import LayerNormFp32
from timm.layers.weight_init import trunc_normal_
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from paucal.backbones.families.common.contract import DEIT_CROP, build, configuration
from paucal.backbones.families.cvt.frame import CvtBackbone, renamed, require_sound
from paucal.backbones.families.cvt.layers import ConvEmbed, CvtBlock, Grid, QuickGelu
from paucal.backbones.families.cvt.windows import Padding, WindowAttention


class SizedConvEmbed(ConvEmbed):
    """A `ConvEmbed` of maps whose sizes are plain numbers to `torch.compile`, which makes code anew for each size.

    One program for all sizes of windows takes minutes to derive, and self-distillation has crops of two sizes.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Return tokens (B, H * W, width) of a map, and their grid (H, W)."""
        for side in x.shape[2:]:
            operator.index(side)
        return super().forward(x)


class EsvitCvt(CvtBackbone):
    """A windowed CvT; the defaults are those of EsViT's CvT-T.

    Args:
        in_chans: channels of the images.
        num_classes: outputs of the classifier; 0 for none.
        global_pool: what the classifier reads: the mean of the cells ("avg"), or "" for the map.
        embed_dims: channels of each stage.
        depths: blocks of each stage.
        num_heads: heads of each stage.
        window_size: most rows and columns of a window.
        padding: "published", "masked" or "shrunk"; see `WindowAttention`.
        rel_pos_bias: whether attention has a learned bias for each offset between cells.
        mlp_ratio: hidden channels of each MLP over those of its stage.
        drop_rate: dropout before the classifier.
        proj_drop_rate: dropout after projections within the blocks.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: chance that a branch of the last block is skipped in training; linear from 0 at the first.

    Raises:
        ValueError: a value that makes no model.
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
        require_sound(embed_dims, depths, num_heads, mlp_ratio, drop_path_rate)
        rates: Any = calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True)
        make_norm = partial(LayerNormFp32, eps=1e-5)
        windows = (window_size, padding, rel_pos_bias, proj_drop_rate, attn_drop_rate)

        def make_block(stage: int, number: int) -> nn.Module:
            width = embed_dims[stage]
            attn = WindowAttention(width, num_heads[stage], *windows)
            return CvtBlock(width, attn, mlp_ratio, QuickGelu, make_norm, proj_drop_rate, rates[stage][number])

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
        self.apply(_init)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the tables of relative biases."""
        return {name for name, _ in self.named_parameters() if name.endswith("relative_position_bias_table")}


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


_BLOCK = {
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
_RULES = (
    (r"stage(\d+)\.0\.", r"stages.\1.embed."),
    *((rf"stage(\d+)\.1\.layers\.(\d+)\.{end}", rf"stages.\1.blocks.\2.{ours}") for end, ours in _BLOCK.items()),
)


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Convert the names of EsViT, without its index tables, which are computed."""
    return {name: value for name, value in renamed(state, _RULES).items() if not name.endswith(".rel_pos_idx")}


_CONFIG = configuration("stages.0.embed.proj", crop_pct=DEIT_CROP, license="mit")
default_cfgs = generate_default_cfgs({"esvit_cvt_tiny": _CONFIG, "esvit_cvt_small": _CONFIG})


def _create(name: str, pretrained: bool, settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> EsvitCvt:
    return build(EsvitCvt, name, pretrained, settings, arguments, pretrained_filter_fn=checkpoint_filter_fn)


@register_model
def esvit_cvt_tiny(pretrained: bool = False, **arguments: Any) -> EsvitCvt:
    """Build EsViT's CvT-T: 30.1 million parameters, 4.29 GMACs at 224 pixels. Arguments of `EsvitCvt` may be given."""
    return _create("esvit_cvt_tiny", pretrained, {"drop_path_rate": 0.1}, arguments)


@register_model
def esvit_cvt_small(pretrained: bool = False, **arguments: Any) -> EsvitCvt:
    """Build EsViT's larger configuration, which has no published weights. Arguments of `EsvitCvt` may be given."""
    settings = {
        "embed_dims": (64, 128, 256, 512),
        "depths": (2, 2, 10, 4),
        "num_heads": (2, 4, 8, 16),
        "drop_path_rate": 0.2,
    }
    return _create("esvit_cvt_small", pretrained, settings, arguments)
