"""The patch embeddings and the block of LV-ViT (tables 3 and 4 of the supplement of "All Tokens Matter")."""

from typing import NamedTuple

import torch
from timm.layers.config import use_fused_attn
from timm.layers.drop import DropPath
from timm.layers.mlp import Mlp
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.attention import attend, join_heads, split_heads
from paucal.types import height_and_width

Size = tuple[int, int]


class StemPlan(NamedTuple):
    """The convolutions of a patch embedding.

    Attributes:
        hidden: (kernel, stride) of each convolution before the last; all have the stem's width.
        overlap: Kernel size of the last convolution, divided by its stride.
    """

    hidden: tuple[tuple[int, int], ...]
    overlap: int = 1


# The rows of table 3, in the table's order. The third row has the kernels 7, 3, 8 and the strides 2, 2, 4, so that
# patches would overlap, but the number of parameters in this row (25M) corresponds to a last kernel of 4. The stem
# whose name ends in "overlap" has the table's kernels, with a padding that gives the same grid as without overlap.
STEMS = {
    "1_conv": StemPlan(()),
    "2_conv": StemPlan(((7, 2),)),
    "3_conv_coarse": StemPlan(((7, 2), (3, 2))),
    "3_conv_coarse_overlap": StemPlan(((7, 2), (3, 2)), overlap=2),
    "3_conv": StemPlan(((7, 2), (3, 1))),
    "4_conv": StemPlan(((7, 2), (3, 1), (3, 1))),
    "6_conv": StemPlan(((7, 2), (3, 1), (3, 1), (3, 1), (3, 1))),
}


class LvVitStem(nn.Module):
    """Convolutions with batch norm and ReLU, followed by a convolution that divides the map into patches.

    Names (`conv1`, `bn1`, ..., `proj`) and initialisation (torch's default) are those of the published code. Only the
    last convolution has a bias.

    Args:
        img_size: Side, or (height, width), of the images in pixels.
        patch_size: Side of a patch in pixels.
        in_chans: Number of channels of the images.
        embed_dim: Number of channels of the patch tokens.
        stem: Key of `STEMS`.
        width: Number of channels between the convolutions.

    Attributes:
        img_size: (height, width) of the images in pixels.
        patch_size: (height, width) of a patch in pixels.
        grid_size: (rows, columns) of the grid for `img_size`.
        num_patches: Number of patches for `img_size`.
    """

    def __init__(
        self,
        img_size: int | Size = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        embed_dim: int = 384,
        stem: str = "4_conv",
        width: int = 64,
    ) -> None:
        super().__init__()
        plan = _stem_plan(stem, patch_size)
        self.patch_size = (patch_size, patch_size)
        self.set_input_size(img_size)
        self.n_hidden, stride = len(plan.hidden), patch_size
        for number, (kernel, step) in enumerate(plan.hidden, 1):
            conv = nn.Conv2d(in_chans, width, kernel, step, kernel // 2, bias=False)
            self.add_module(f"conv{number}", conv)
            self.add_module(f"bn{number}", nn.BatchNorm2d(width))
            in_chans, stride = width, stride // step
        padding = (plan.overlap - 1) * stride // 2
        self.proj = nn.Conv2d(in_chans, embed_dim, plan.overlap * stride, stride, padding)

    def set_input_size(self, img_size: int | Size) -> None:
        """Set the image size, on which no weights depend."""
        height, width = height_and_width(img_size)
        self._require_whole_patches(height, width)
        self.img_size = (height, width)
        self.grid_size = (height // self.patch_size[0], width // self.patch_size[1])
        self.num_patches = self.grid_size[0] * self.grid_size[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return the map (B, embed_dim, H / patch_size, W / patch_size) for images (B, in_chans, H, W)."""
        self._require_whole_patches(x.shape[2], x.shape[3])
        # On a CPU, the channels-last format saves a fifth of the time in evaluation. In training it saves little, and
        # batch norms would sum in single instead of double precision.
        x = x if self.training else x.contiguous(memory_format=torch.channels_last)
        for number in range(1, self.n_hidden + 1):
            conv, norm = getattr(self, f"conv{number}"), getattr(self, f"bn{number}")
            x = functional.relu(norm(conv(x)), inplace=True)
        return self.proj(x)

    def _require_whole_patches(self, height: int, width: int) -> None:
        patch = self.patch_size[0]
        if height < 1 or width < 1 or height % patch or width % patch:
            raise ValueError(
                f"images have {height}x{width} pixels; both sides must be multiples of the patch of {patch} pixels"
            )


def first_convolution(stem: str) -> str:
    """Return the dotted name, in the model, of the layer whose input is the image."""
    return "patch_embed.conv1" if STEMS[stem].hidden else "patch_embed.proj"


def _stem_plan(stem: str, patch_size: int) -> StemPlan:
    if stem not in STEMS:
        raise ValueError(f"stem is {stem!r}; choose one of {', '.join(STEMS)}")
    plan, smallest_patch = STEMS[stem], 1
    for _, step in plan.hidden:
        smallest_patch *= step
    smallest_patch *= plan.overlap  # the padding for overlapping patches, (kernel - stride) / 2, must be an integer
    if patch_size < 1 or patch_size % smallest_patch:
        raise ValueError(
            f"patch_size is {patch_size}; with the stem {stem!r} it must be a multiple of {smallest_patch}"
        )
    return plan


Grid = tuple[int, int]


class LvVitAttention(nn.Module):
    """Self-attention; by default the linear layer `qkv` has no bias, as in all published models."""

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
        """Apply the layer to tokens (B, N, C); the shape stays the same."""
        query, key, value = split_heads(self.qkv(x), 3, self.num_heads)
        x = attend(query, key, value, None, self.scale, self.fused_attn, self.attn_drop)
        return self.proj_drop(self.proj(join_heads(x)))


class LvVitBlock(nn.Module):
    """A block: x + attention(norm(x)) / s, then x + MLP(norm(x)) / s ("enhanced residual", table 4 of the supplement).

    Args:
        skip_lam: Number s by which both residual branches are divided.
        drop_path: Probability that a residual branch is skipped in training, for each image.
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
        """Apply the block to tokens (B, N, C); the shape stays the same, and `grid` is not used."""
        # Scale and add with one kernel, since a separate division would take another pass over the tokens.
        x = torch.add(x, self.drop_path1(self.attn(self.norm1(x))), alpha=self.branch_scale)
        return torch.add(x, self.drop_path2(self.mlp(self.norm2(x))), alpha=self.branch_scale)
