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

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.layers.config import use_fused_attn
from timm.layers.norm import LayerNormFp32
from timm.models import generate_default_cfgs
from torch import Tensor, nn

from paucal.backbones.attention_layout import AttentionLayout
from paucal.backbones.families.common.attention import attend, join_heads, split_heads
from paucal.backbones.families.common.contract import DEIT_CROP_RATIO, make_default_cfg, register_variants, to_tokens
from paucal.backbones.families.cvt import CvtBackbone, DepthwiseNorm, Grid, as_map, rename_tensors

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
    """The CvT of DrLoc; the defaults are those of its CvT-13, the published `drop_path_rate` is 0.

    With `eps_in_root`, the norms add 1e-5 to the variance, as a layer norm does, instead of to the standard deviation.
    """

    act_layer = nn.GELU
    stem_padding = 3

    def __init__(
        self, *, eps_in_root: bool = False, proj_drop_rate: float = 0.0, attn_drop_rate: float = 0.0, **arguments: Any
    ) -> None:
        super().__init__(
            make_norm=partial(LayerNormFp32, eps=EPS) if eps_in_root else DeviationNorm,
            make_attention=lambda width, heads, is_last: SharedConvAttention(
                width, heads, proj_drop_rate, attn_drop_rate
            ),
            proj_drop_rate=proj_drop_rate,
            **arguments,
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
    (r"layers\.(\d+)\.0\.", r"stages.\1.embed.proj."),
    (r"layers\.(\d+)\.1\.g$", r"stages.\1.embed.norm.weight"),
    (r"layers\.(\d+)\.1\.b$", r"stages.\1.embed.norm.bias"),
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
register_variants(__name__, "CvT in DrLoc (Liu et al. 2021)", DrlocCvt, {"drloc_cvt_13": {}}, checkpoint_filter_fn, 3)
