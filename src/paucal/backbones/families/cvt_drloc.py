"""The CvT that DrLoc's authors trained ("Efficient Training of Visual Transformers with Small Datasets", NeurIPS 2021).

The official CvT was not public at that time, so the authors used an independent implementation. This implementation
differs from the official CvT, whose weights cannot be loaded:
- no class token and no final norm; the mean of the last map is classified
- one depthwise convolution for both keys and values
- no bias in the projections of queries, keys and values
- products of queries and keys are divided by the square root of a head's width
- exact GELU
- a norm over the channels that divides by their standard deviation plus 1e-5
- torch's default initialisation, and no stochastic depth

Differences from the published code:
- If all channels are equal, the gradient of the norm is (g - mean g) / 1e-5, as derived mathematically; the published
  code gives NaN. In all other cases, the gradients are equal.
- `eps_in_root` selects the norm that the independent implementation has had since January 2022.
- The norm's scale and shift are one-dimensional, so optimizers apply no weight decay to them. In the published code,
  the scale and shift have four dimensions and get weight decay.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from timm.layers.config import use_fused_attn
from timm.layers.drop import calculate_drop_path_rates
from timm.layers.norm import LayerNormFp32
from timm.models import generate_default_cfgs
from torch import Tensor, nn

from paucal.backbones.attention_layout import AttentionLayout
from paucal.backbones.families.common.attention import attend, join_heads, split_heads
from paucal.backbones.families.common.contract import DEIT_CROP_RATIO, make_default_cfg, register_variants, to_tokens
from paucal.backbones.families.cvt_layers import (
    CvtBackbone,
    CvtBlock,
    DepthwiseNorm,
    Grid,
    as_map,
    rename_tensors,
    require_valid_sizes,
)

PAPER = "CvT in DrLoc (Liu et al. 2021)"  # in the table of models

EPS = 1e-5  # added to the standard deviation or, if `eps_in_root`, to the variance


class DeviationNorm(nn.Module):
    """The norm (x - mean) / (std + 1e-5) over the channels, with a learned scale and shift; computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised tokens (B, N, C)."""
        floats = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        centred = floats - floats.mean(-1, keepdim=True)
        # At 0, the gradient of torch's vector norm is 0, but the gradient of the root of a variance is NaN.
        deviation = torch.linalg.vector_norm(centred, dim=-1, keepdim=True) * centred.shape[-1] ** -0.5
        # Multiply by the reciprocal, since the gradient of a quotient takes three more passes over the tokens.
        return torch.addcmul(self.bias, centred * (deviation + EPS).reciprocal(), self.weight).to(x.dtype)


class SharedConvAttention(nn.Module):
    """Attention in which keys and values share a depthwise convolution with stride 2."""

    attention_layout = AttentionLayout(pools="keys")

    def __init__(self, width: int, num_heads: int, proj_drop: float = 0.0, attn_drop: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (width // num_heads) ** -0.5
        self.fused_attn = bool(use_fused_attn())
        self.conv_proj_q = DepthwiseNorm(width, stride=1)
        self.conv_proj_kv = DepthwiseNorm(width, stride=2)
        self.proj_q = nn.Linear(width, width, bias=False)
        self.proj_kv = nn.Linear(width, 2 * width, bias=False)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the layer to the (B, H * W, C) tokens of a grid (H, W); the shape stays the same."""
        cells = as_map(x, grid)
        (query,) = split_heads(self.proj_q(to_tokens(self.conv_proj_q(cells))), 1, self.num_heads)
        key, value = split_heads(self.proj_kv(to_tokens(self.conv_proj_kv(cells))), 2, self.num_heads)
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        return self.proj_drop(self.proj(join_heads(x)))


class DrlocCvt(CvtBackbone):
    """The CvT of DrLoc; the defaults are those of its CvT-13.

    Args:
        global_pool: Input of the classifier: "avg" for the mean of the map, "" for the map.
        eps_in_root: Whether the norms add 1e-5 to the variance, as a layer norm does, instead of to the standard
            deviation.
        drop_path_rate: Probability that a residual branch of the last block is skipped in training; the probability
            rises linearly from 0 at the first block. Published: 0.
    """

    def __init__(  # noqa: PLR0913 (timm's builder passes plain arguments)
        self,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        embed_dims: Sequence[int] = (64, 192, 384),
        depths: Sequence[int] = (1, 2, 10),
        num_heads: Sequence[int] = (1, 3, 6),
        mlp_ratio: float = 4.0,
        eps_in_root: bool = False,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        require_valid_sizes(embed_dims, depths, num_heads, mlp_ratio, drop_path_rate)
        rates: Any = calculate_drop_path_rates(drop_path_rate, list(depths), stagewise=True)
        make_norm = partial(LayerNormFp32, eps=EPS) if eps_in_root else DeviationNorm

        def make_block(stage: int, index: int) -> nn.Module:
            width = embed_dims[stage]
            attn = SharedConvAttention(width, num_heads[stage], proj_drop_rate, attn_drop_rate)
            return CvtBlock(width, attn, mlp_ratio, nn.GELU, make_norm, proj_drop_rate, rates[stage][index])

        super().__init__(
            in_chans=in_chans,
            embed_dims=embed_dims,
            depths=depths,
            stem_padding=3,
            make_norm=make_norm,
            make_block=make_block,
            num_classes=num_classes,
            global_pool=global_pool,
            drop_rate=drop_rate,
        )
        self.norm = nn.Identity()
        self._init_classifier()

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier by a new one with random weights on the same device; set `global_pool` if given."""
        super().reset_classifier(num_classes, global_pool)
        self._init_classifier()

    def _init_classifier(self) -> None:
        if isinstance(self.head, nn.Linear):
            self.head.reset_parameters()


# The rules map the published names of tensors (regular expressions) to the model's names.
_EMBED_RULES = (
    (r"layers\.(\d+)\.0\.", r"stages.\1.embed.proj."),
    (r"layers\.(\d+)\.1\.g$", r"stages.\1.embed.norm.weight"),
    (r"layers\.(\d+)\.1\.b$", r"stages.\1.embed.norm.bias"),
)
_BLOCK_RULES = {
    r"0\.norm\.g$": "norm1.weight",
    r"0\.norm\.b$": "norm1.bias",
    r"0\.fn\.to_(q|kv)\.net\.0\.": r"attn.conv_proj_\3.conv.",
    r"0\.fn\.to_(q|kv)\.net\.1\.": r"attn.conv_proj_\3.bn.",
    r"0\.fn\.to_(q|kv)\.net\.2\.": r"attn.proj_\3.",
    r"0\.fn\.to_out\.0\.": "attn.proj.",
    r"1\.norm\.g$": "norm2.weight",
    r"1\.norm\.b$": "norm2.bias",
    r"1\.fn\.net\.0\.": "mlp.fc1.",
    r"1\.fn\.net\.3\.": "mlp.fc2.",
}
_RENAMING_RULES = (
    *_EMBED_RULES,
    *(
        (rf"layers\.(\d+)\.2\.layers\.(\d+)\.{published_name}", rf"stages.\1.blocks.\2.{model_name}")
        for published_name, model_name in _BLOCK_RULES.items()
    ),
)


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Rename the tensors of VTs-Drloc's checkpoints to the model's names, except for the localization head."""
    return rename_tensors(state, _RENAMING_RULES)


default_cfgs = generate_default_cfgs(
    {"drloc_cvt_13": make_default_cfg("stages.0.embed.proj", crop_pct=DEIT_CROP_RATIO, license="mit")}
)
# 19.9M parameters, 4.54 GMACs at 224 pixels.
register_variants(__name__, DrlocCvt, {"drloc_cvt_13": {}}, checkpoint_filter_fn, 3)
