"""The convolutional patch embedding and the head-interacted attention of DHVT."""

import itertools
import math

import torch
from timm.layers.config import use_fused_attn
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn

from paucal.backbones.families.common.attention import attend, join_heads, split_heads
from paucal.backbones.families.common.contract import init_table
from paucal.backbones.families.dhvt.parts import DhvtParts, Norm

SOPE_PATCHES = (2, 4, 8, 16)


def map_norm(kind: Norm, channels: int) -> nn.Module:
    """Return a norm of maps (B, C, H, W): over the batch and cells ("batch") or the channels of a cell ("layer")."""
    return nn.BatchNorm2d(channels) if kind == "batch" else LayerNorm2d(channels)


class Affine(nn.Module):
    """Scale and shift of each channel of a map, at first 1 and 0 (the supplement's section 1.2).

    The original decays both towards 0; `Dhvt.no_weight_decay` names them.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return alpha * x + beta, (B, C, H, W)."""
        return x * self.alpha + self.beta


class Sope(nn.Module):
    """Sequential overlapping patch embedding: 3x3 convolutions of stride 2, a norm after each, between two affines.

    A patch of 2^n pixels takes n convolutions; the width doubles up to `embed_dim`. Activations stand between them,
    for patches of 2 pixels behind the only one. A side of s pixels gives ceil(s / patch) cells.

    The paper has patches of 2, 4 and 16; 8 follows the same rule. Its pseudo-code has a bias in the convolutions and
    its program none, as here. Its program synchronises these norms over processes; ours are plain ones that Lightning
    (`sync_batchnorm`) or torch converts.

    Args:
        img_size: (height, width) in pixels that `grid_size` stands for; any other size works as well.
        patch_size: pixels per cell.
        in_chans: channels of the images.
        embed_dim: channels of the tokens.
        parts: which affines there are, and the norm.

    Raises:
        ValueError: another patch size, or a width that it does not divide.
    """

    def __init__(
        self, img_size: tuple[int, int], patch_size: int, in_chans: int, embed_dim: int, parts: DhvtParts
    ) -> None:
        super().__init__()
        if patch_size not in SOPE_PATCHES:
            raise ValueError(f"patch_size is {patch_size!r}; SOPE has {SOPE_PATCHES}, or give sope=False")
        if embed_dim % (patch_size // 2):
            raise ValueError(
                f"embed_dim is {embed_dim}; SOPE of patch {patch_size} needs multiples of {patch_size // 2}"
            )
        self.patch_size = patch_size
        self.set_input_size(img_size)
        units = int(math.log2(patch_size))
        widths = [in_chans, *(embed_dim >> (units - 1 - unit) for unit in range(units))]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(convolution, map_norm(parts.sope_norm, after)), nn.GELU()]
        self.proj = nn.Sequential(*(layers if units == 1 else layers[:-1]))
        self.pre_affine = Affine(in_chans) if parts.pre_affine else nn.Identity()
        self.post_affine = Affine(embed_dim) if parts.post_affine else nn.Identity()

    def set_input_size(self, img_size: tuple[int, int]) -> None:
        """Record the image size that `grid_size` stands for."""
        self.img_size = img_size
        self.grid_size = (-(-img_size[0] // self.patch_size), -(-img_size[1] // self.patch_size))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, embed_dim, ceil(H / patch), ceil(W / patch)) of images (B, in_chans, H, W)."""
        return self.post_affine(self.proj(self.pre_affine(x)))


class HeadInteractedAttention(nn.Module):
    """Self-attention, joined by one head token per head (the supplement's section 1.3).

    A head token is made from the mean token's channels of that head. Head tokens stand behind the others, in the
    order of the heads, so the weights that `recorded_attention` reads are over (class, cells, head tokens). They end
    here: the class token takes the mean of their outputs.

    The published pseudo-code starts the head positions at zero; as in the program they are drawn here. The program
    decays them; `Dhvt.no_weight_decay` names them.

    Args:
        dim: channels of the tokens.
        num_heads: heads, which divide `dim`.
        qkv_bias: whether the joint projection has a bias.
        head_tokens: False for the plain attention of a ViT.
        attn_drop: dropout of the weights.
        proj_drop: dropout of the output.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        qkv_bias: bool = True,
        head_tokens: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        width = dim // num_heads
        self.scale = width**-0.5
        self.fused_attn = bool(use_fused_attn())
        self.head_tokens = head_tokens
        if head_tokens:
            self.pos_embed = nn.Parameter(torch.zeros(1, num_heads, dim))
            init_table(self.pos_embed)
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        if head_tokens:
            self.act = nn.GELU()
            self.ht_proj = nn.Linear(width, dim)
            self.ht_norm = nn.LayerNorm(width)  # its eps is 1e-5 in the program, unlike that of the blocks' norms

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, 1 + N, C) of tokens (B, 1 + N, C), the class token first."""
        count = x.shape[1]
        if self.head_tokens:
            x = torch.cat((x, self.to_head_tokens(x)), 1)
        query, key, value = split_heads(self.qkv(x), 3, self.num_heads)
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        x = self.proj(join_heads(x))
        if self.head_tokens:
            class_token, cells, heads = x.split((1, count - 1, self.num_heads), 1)
            x = torch.cat((class_token + heads.mean(1, keepdim=True), cells), 1)
        return self.proj_drop(x)

    def to_head_tokens(self, x: Tensor) -> Tensor:
        """Return the head tokens (B, heads, C) of tokens (B, 1 + N, C)."""
        batch, _, channels = x.shape
        heads = x.mean(1).reshape(batch, self.num_heads, -1)
        heads = self.ht_proj(heads).reshape(batch, self.num_heads, self.num_heads, -1)
        return self.act(self.ht_norm(heads)).reshape(batch, self.num_heads, channels) + self.pos_embed
