"""Variants of timm's vision transformers that are used in the papers' code.

- `drloc_vit_base_patch16_224`: ViT-B/16 as in DrLoc's experiments (Liu et al. 2021, "Efficient Training of Visual
  Transformers with Small Datasets"): no bias in the projection to queries, keys and values, norms with an epsilon of
  1e-5, dropout of 0.1.
- `esvit_deit_*`, `esvit_vit_*`: the single-stage transformers of EsViT (Li et al. 2022) and DINO. The position
  embedding is resized to the grid of the images without antialiasing, unlike in timm.

DrLoc's Swin-T is timm's `swin_tiny_patch4_window7_224`, and the ResNet-50 of both papers is timm's `resnet50`.
"""

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.layers.weight_init import trunc_normal_
from timm.models import generate_default_cfgs
from timm.models import vision_transformer as timm_vit
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from paucal.backbones.families.common.contract import DEIT_CROP_RATIO, make_default_cfg, register_variants
from paucal.backbones.families.common.positions import fit_position_embedding, resample_positions

PAPER = "ViT in the papers' programs"  # in the table of models


class DrlocViT(VisionTransformer):
    """timm's vision transformer, optionally with the initialisation of DrLoc's code.

    Args:
        published_init: Whether to draw class token and positions from a standard normal distribution and to initialise
            layers with torch's defaults, as in DrLoc's code; False for timm's initialisation.
        norm_eps: Epsilon of all norms.
        arguments: Arguments of timm's `VisionTransformer`.
    """

    def __init__(self, *, published_init: bool = False, norm_eps: float = 1e-5, **arguments: Any) -> None:
        if published_init:
            arguments = {**arguments, "weight_init": "reset"}
        super().__init__(**{"norm_layer": partial(nn.LayerNorm, eps=norm_eps), **arguments})
        if published_init:
            for parameter in (self.cls_token, self.pos_embed):
                if parameter is not None:
                    nn.init.normal_(parameter)


class EsvitViT(VisionTransformer):
    """timm's vision transformer for images of any size, with position embeddings resized as in DINO and EsViT.

    The sides of images must be multiples of the patch size. Resizing is bicubic, without antialiasing. The published
    code resizes both sides by the same factor, so it only supports square images. Here, each side has its own factor,
    which gives the same result for square images.

    Args:
        norm_eps: Epsilon of all norms.
        dynamic_img_size: Whether images may have sizes other than `img_size`.
        arguments: Arguments of timm's `VisionTransformer`, without `no_embed_class`.
    """

    antialias_positions = False  # see `common.positions`

    def __init__(self, *, norm_eps: float = 1e-6, dynamic_img_size: bool = True, **arguments: Any) -> None:
        if arguments.get("no_embed_class"):
            raise ValueError(
                "no_embed_class is not supported by EsvitViT, whose class token has a position embedding: remove it"
            )
        norm_layer = partial(nn.LayerNorm, eps=norm_eps)
        super().__init__(**{"norm_layer": norm_layer, **arguments}, dynamic_img_size=dynamic_img_size)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Initialise as in timm, but draw the class token with a standard deviation of 0.02, as published."""
        super().init_weights(mode, needs_reset)
        if self.cls_token is not None:
            trunc_normal_(self.cls_token, std=0.02)

    def set_input_size(self, img_size: Any = None, patch_size: Any = None) -> None:
        """Prepare the model for another image size as in timm, but resize positions as in a forward pass."""
        old_grid: Any = self.patch_embed.grid_size
        positions = self.pos_embed
        super().set_input_size(img_size, patch_size)
        new_grid: Any = self.patch_embed.grid_size
        if positions is not None and old_grid != new_grid:
            table = resample_positions(positions.detach(), old_grid, new_grid, self.num_prefix_tokens)
            self.pos_embed = nn.Parameter(table.clone(), requires_grad=positions.requires_grad)

    def _pos_embed(self, x: Tensor) -> Tensor:
        if not self.dynamic_img_size or self.pos_embed is None:
            return super()._pos_embed(x)
        prefix = [token.expand(x.shape[0], -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        grid: Any = self.patch_embed.grid_size
        positions = resample_positions(self.pos_embed, grid, (x.shape[1], x.shape[2]), self.num_prefix_tokens)
        return self.pos_drop(torch.cat([*prefix, x.flatten(1, 2)], dim=1) + positions)


# The published names of tensors (regular expressions), and timm's names.
_LUCIDRAINS_NAMES = {
    r"pos_embedding$": "pos_embed",
    r"to_patch_embedding\.1\.": "patch_embed.proj.",
    r"transformer\.layers\.(\d+)\.0\.norm\.": r"blocks.\1.norm1.",
    r"transformer\.layers\.(\d+)\.0\.fn\.to_qkv\.": r"blocks.\1.attn.qkv.",
    r"transformer\.layers\.(\d+)\.0\.fn\.to_out\.0\.": r"blocks.\1.attn.proj.",
    r"transformer\.layers\.(\d+)\.1\.norm\.": r"blocks.\1.norm2.",
    r"transformer\.layers\.(\d+)\.1\.fn\.net\.0\.": r"blocks.\1.mlp.fc1.",
    r"transformer\.layers\.(\d+)\.1\.fn\.net\.3\.": r"blocks.\1.mlp.fc2.",
    r"mlp_head\.0\.": "norm.",
    r"mlp_head\.1\.": "head.",
}


def checkpoint_filter_fn(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Rename the tensors of DrLoc's ViT (lucidrains' vit-pytorch) to timm's names, then adapt sizes as timm does.

    DrLoc's ViT flattens each patch row by row, with the channels last, and applies a linear layer. The layer's weights
    are reordered to the weights of the equivalent convolution.
    """
    state = dict(state)
    if _is_lucidrains(state):
        state = {_timm_name(name): value for name, value in state.items()}
        state["patch_embed.proj.weight"] = _as_kernel(state["patch_embed.proj.weight"], getattr(model, "in_chans", 3))
    if isinstance(model, EsvitViT) and model.pos_embed is not None:  # before timm resizes with antialiasing
        grid: Any = model.patch_embed.grid_size
        state = fit_position_embedding(state, model.pos_embed, grid)
    return timm_vit.checkpoint_filter_fn(state, model)  # type: ignore[arg-type]


def _is_lucidrains(state: Mapping[str, Tensor]) -> bool:
    positions, projection = state.get("pos_embedding"), state.get("to_patch_embedding.1.weight")
    return positions is not None and positions.ndim == 3 and projection is not None and projection.ndim == 2


def _timm_name(name: str) -> str:
    for pattern, replacement in _LUCIDRAINS_NAMES.items():
        new_name, count = re.subn("^" + pattern, replacement, name)
        if count:
            return new_name
    return name


def _as_kernel(weight: Tensor, channels: int) -> Tensor:
    """Convert the weight of a linear layer (D, p * p * C) to a kernel (D, C, p, p); return other weights unchanged."""
    for count in (channels, 3):
        side = math.isqrt(weight.shape[1] // count)
        if side * side * count == weight.shape[1]:
            return weight.view(-1, side, side, count).permute(0, 3, 1, 2).contiguous()
    return weight


_TINY, _SMALL, _BASE = (
    {"patch_size": 16, "embed_dim": width, "depth": 12, "num_heads": width // 64} for width in (192, 384, 768)
)
_DRLOC = {"drloc_vit_base_patch16_224": {**_BASE, "qkv_bias": False, "proj_drop_rate": 0.1}}  # 86.5M parameters
_ESVIT = {
    "esvit_deit_tiny_patch16_224": {**_TINY, "drop_path_rate": 0.1},  # 5.7M parameters
    "esvit_deit_small_patch16_224": {**_SMALL, "drop_path_rate": 0.1},  # 22.1M parameters
    "esvit_vit_base_patch16_224": {**_BASE, "drop_path_rate": 0.1},  # 86.6M parameters
}
_CFG = make_default_cfg("patch_embed.proj", fixed_input_size=True, crop_pct=DEIT_CROP_RATIO, license="mit")
default_cfgs = generate_default_cfgs(dict.fromkeys((*_DRLOC, *_ESVIT), _CFG))
register_variants(__name__, DrlocViT, _DRLOC, checkpoint_filter_fn, 3)
register_variants(__name__, EsvitViT, _ESVIT, checkpoint_filter_fn, 3)
