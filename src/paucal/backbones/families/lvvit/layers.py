"""The transformer block of LV-ViT: pre-norm, with each residual branch divided by a constant."""

import torch
from timm.layers.config import use_fused_attn
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from torch import Tensor, nn

from paucal.backbones.families.common.attention import attend, join_heads, split_heads

Grid = tuple[int, int]


class LvVitAttention(nn.Module):
    """Self-attention; by default the joint projection has no bias, as in all published models.

    Args:
        dim: channels of the tokens.
        num_heads: heads, which share the channels.
        qkv_bias: whether queries, keys and values have a bias.
        attn_drop: dropout of the attention weights.
        proj_drop: dropout of the output.
    """

    def __init__(
        self, dim: int, num_heads: int, qkv_bias: bool = False, attn_drop: float = 0.0, proj_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.fused_attn = use_fused_attn()
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, N, C) of tokens (B, N, C)."""
        query, key, value = split_heads(self.qkv(x), 3, self.num_heads)
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        return self.proj_drop(self.proj(join_heads(x)))


class LvVitBlock(nn.Module):
    """x + attention(norm(x)) / s, then x + MLP(norm(x)) / s ("enhanced residual", table 4 of the supplement).

    Args:
        dim: channels of the tokens.
        num_heads: heads of the attention.
        mlp_ratio: hidden channels of the MLP over `dim`.
        qkv_bias: whether queries, keys and values have a bias.
        skip_lam: the divisor s of both branches; the identity path is left as it is.
        proj_drop: dropout after the projections of attention and MLP.
        attn_drop: dropout of the attention weights.
        drop_path: chance that a branch is skipped in training, per image.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        skip_lam: float = 1.0,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.branch_scale = 1.0 / skip_lam
        self.norm1 = nn.LayerNorm(dim)
        self.attn = LvVitAttention(dim, num_heads, qkv_bias, attn_drop, proj_drop)
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """Return (B, N, C) of tokens (B, N, C); where they lie on the grid does not matter."""
        # One kernel scales and adds; a division of its own would pass over the tokens once more.
        x = torch.add(x, self.drop_path1(self.attn(self.norm1(x))), alpha=self.branch_scale)
        return torch.add(x, self.drop_path2(self.mlp(self.norm2(x))), alpha=self.branch_scale)
