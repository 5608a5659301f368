"""CvT, the convolutional vision transformer (Wu et al., ICCV 2021, arXiv:2103.15808), as its authors published it.

CvT has three stages. In each block, queries, keys and values each have a depthwise convolution and a batch norm; the
stride is 2 for keys and values. Only the last stage has a class token, which bypasses the convolutions. Products of
queries and keys are divided by the square root of the stage's width, not of a head's width. There is no position
embedding, so images may have any size of at least 3 pixels.

Differences from the published code:
- A batch with one image gives logits (1, K), whereas the published code drops the batch axis.
- Feature maps, mean pooling and gradient checkpointing are added, as in timm.

In the published code and here, a loss on the class token alone gives no gradient to the query convolution of the last
block, since only the queries of patch tokens pass through this convolution. The convolution gets a gradient with
`global_pool="avg"` or a loss on patch tokens, such as dense relative localization. The gradient of `proj_k.bias`, and
of the bias of the keys' batch norm in stages without a class token, is 0 up to rounding, since softmax does not change
if all keys have the same offset.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from timm.layers.config import use_fused_attn
from timm.layers.drop import calculate_drop_path_rates
from timm.layers.norm import LayerNormFp32
from timm.layers.weight_init import trunc_normal_
from timm.models import generate_default_cfgs
from torch import Tensor, nn

from paucal.backbones.attention_layout import AttentionLayout
from paucal.backbones.families.common.attention import attend, join_heads
from paucal.backbones.families.common.contract import (
    DEIT_CROP_RATIO,
    init_linear,
    make_default_cfg,
    register_variants,
    to_tokens,
)
from paucal.backbones.families.cvt_layers import (
    CvtBackbone,
    CvtBlock,
    DepthwiseNorm,
    Grid,
    QuickGelu,
    as_map,
    rename_tensors,
    require_valid_sizes,
)

PAPER = "CvT (Wu et al. 2021)"  # in the table of models


class ConvAttention(nn.Module):
    """Attention with a convolutional projection for each of queries, keys and values (section 3.2 of the paper)."""

    attention_layout = AttentionLayout(pools="keys")

    def __init__(
        self, width: int, num_heads: int, num_prefix_tokens: int = 0, proj_drop: float = 0.0, attn_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_prefix_tokens = num_prefix_tokens
        self.scale = width**-0.5
        self.fused_attn = bool(use_fused_attn())
        self.conv_proj_q = DepthwiseNorm(width, stride=1)
        self.conv_proj_k = DepthwiseNorm(width, stride=2)
        self.conv_proj_v = DepthwiseNorm(width, stride=2)
        self.proj_q = nn.Linear(width, width)
        self.proj_k = nn.Linear(width, width)
        self.proj_v = nn.Linear(width, width)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """Apply the layer to (B, P + H * W, C) tokens: P prefix tokens and the patch tokens of a grid (H, W)."""
        prefix, cells = x[:, : self.num_prefix_tokens], x[:, self.num_prefix_tokens :]
        cells = as_map(cells.contiguous(), grid)  # copied once, not by each of the three convolutions
        query = self._project_to_heads(self.proj_q, prefix, self.conv_proj_q(cells))
        key = self._project_to_heads(self.proj_k, prefix, self.conv_proj_k(cells))
        value = self._project_to_heads(self.proj_v, prefix, self.conv_proj_v(cells))
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        return self.proj_drop(self.proj(join_heads(x)))

    def _project_to_heads(self, proj: nn.Module, prefix: Tensor, cells: Tensor) -> Tensor:
        tokens = to_tokens(cells)
        tokens = torch.cat((prefix, tokens), 1) if self.num_prefix_tokens else tokens
        return proj(tokens).unflatten(2, (self.num_heads, -1)).transpose(1, 2)


class Cvt(CvtBackbone):
    """A CvT; the defaults are those of CvT-13.

    Args:
        global_pool: Input of the classifier: "token" for the class token, "avg" for the mean of the patch tokens, ""
            for all tokens.
        drop_path_rate: Probability that a residual branch of the last block is skipped in training. In the last stage,
            the probability rises linearly from 0 at the first block; in earlier stages, it is 0. Published: 0.1.
    """

    pools = ("token", "avg", "")

    def __init__(  # noqa: PLR0913 (timm's builder passes plain arguments)
        self,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dims: Sequence[int] = (64, 192, 384),
        depths: Sequence[int] = (1, 2, 10),
        num_heads: Sequence[int] = (1, 3, 6),
        mlp_ratio: float = 4.0,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        require_valid_sizes(embed_dims, depths, num_heads, mlp_ratio, drop_path_rate)
        rates: list[float] = calculate_drop_path_rates(drop_path_rate, depths[-1])  # type: ignore[assignment]
        last = len(depths) - 1
        make_norm = partial(LayerNormFp32, eps=1e-5)

        def make_block(stage: int, index: int) -> nn.Module:
            width, prefix, rate = embed_dims[stage], int(stage == last), rates[index] if stage == last else 0.0
            attn = ConvAttention(width, num_heads[stage], prefix, proj_drop_rate, attn_drop_rate)
            return CvtBlock(width, attn, mlp_ratio, QuickGelu, make_norm, proj_drop_rate, rate)

        super().__init__(
            in_chans=in_chans,
            embed_dims=embed_dims,
            depths=depths,
            stem_padding=2,
            make_norm=make_norm,
            make_block=make_block,
            class_token=True,
            num_classes=num_classes,
            global_pool=global_pool,
            drop_rate=drop_rate,
        )
        self.norm = make_norm(embed_dims[-1])
        self.apply(init_linear)
        trunc_normal_(self.stages[-1].cls_token, std=0.02)  # type: ignore[arg-type]


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Rename the tensors of microsoft/CvT's checkpoints to the model's names."""
    return rename_tensors(
        state, ((r"stage(\d+)\.patch_embed\.", r"stages.\1.embed."), (r"stage(\d+)\.", r"stages.\1."))
    )


_CONFIG = make_default_cfg("stages.0.embed.proj", crop_pct=DEIT_CROP_RATIO, license="mit")
default_cfgs = generate_default_cfgs({"cvt_13": _CONFIG, "cvt_21": _CONFIG})


_VARIANTS = {
    "cvt_13": {"drop_path_rate": 0.1},  # 20.0M parameters, 4.57 GMACs at 224 pixels
    "cvt_21": {"depths": (1, 4, 16), "drop_path_rate": 0.1},  # 31.6M parameters, 7.18 GMACs
}
register_variants(__name__, Cvt, _VARIANTS, checkpoint_filter_fn, 3)
