"""Variants of timm's vision transformers: those of the papers' code, and small ones for small images.

- `drloc_vit_base_patch16_224`: ViT-B/16 as in DrLoc's experiments (Liu et al. 2021, "Efficient Training of Visual
  Transformers with Small Datasets"): no bias in the projection to queries, keys and values, norms with an epsilon of
  1e-5, dropout of 0.1.
- `esvit_deit_*`, `esvit_vit_*`: the single-stage transformers of EsViT (Li et al. 2022) and DINO. The position
  embedding is resized to the grid of the images without antialiasing, unlike in timm.
- `vit_*_cifar_*`: plain transformers for images of 32 pixels, the baselines of the DHVT paper. In the paper, ViT-T has
  an accuracy of 67.59 % on CIFAR-100 with 4 heads, as here, and of 66.50 % with 3 heads. The supplement does not give
  the number of heads of a ViT-S for 32 pixels; here, it has 8 heads like DHVT-S. These variants are built without
  drop-path unless `drop_path_rate` is passed (published: 0.1 for all).
- `vit_mini`: paucal's own transformer, with about a million parameters; timm's smallest transformers have 5 million and
  patches of 16 pixels. A convolutional stem divides images into patches of 4 pixels; for few images, this trains far
  better than a linear patch embedding (Xiao et al. 2021, "Early Convolutions Help Transformers See Better"). The
  classifier reads the mean of the patch tokens, so there is no class token.

DrLoc's Swin-T is timm's `swin_tiny_patch4_window7_224`, and the ResNet-50 of both papers is timm's `resnet50`.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.layers.hybrid_embed import HybridEmbed
from timm.layers.weight_init import trunc_normal_
from timm.models import generate_default_cfgs
from timm.models import vision_transformer as timm_vit
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import ConvStem
from torch import Tensor, nn

from paucal.backbones.families.common.contract import DEIT_CROP_RATIO, make_default_cfg, register_variants, rename
from paucal.backbones.families.common.positions import fit_position_embedding, resample_parameter, resample_positions


class DrlocViT(VisionTransformer):
    """timm's vision transformer, optionally with the initialisation of DrLoc's code (`published_init`).

    In this code, class token and positions are drawn from a standard normal distribution, and layers have torch's
    default initialisation.
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
        if positions is not None:
            self.pos_embed = resample_parameter(positions, old_grid, new_grid, self.num_prefix_tokens)

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
    positions, projection = state.get("pos_embedding"), state.get("to_patch_embedding.1.weight")
    is_published = positions is not None and positions.ndim == 3 and projection is not None and projection.ndim == 2
    # The other models of this file differ from DrLoc's ViT, so they must refuse its weights.
    if is_published and isinstance(model, DrlocViT | EsvitViT):
        state = {rename(name, _LUCIDRAINS_NAMES.items()): value for name, value in state.items()}
        # Convert the weight (D, p * p * C) to a kernel (D, C, p, p).
        weight = state["patch_embed.proj.weight"]
        for channels in (getattr(model, "in_chans", 3), 3):
            side = math.isqrt(weight.shape[1] // channels)
            if side * side * channels == weight.shape[1]:
                kernel = weight.view(-1, side, side, channels).permute(0, 3, 1, 2).contiguous()
                state["patch_embed.proj.weight"] = kernel
                break
    # Resize the position embedding here, as timm's function below would resize it with antialiasing.
    if isinstance(model, EsvitViT) and model.pos_embed is not None:
        grid: Any = model.patch_embed.grid_size
        state = fit_position_embedding(state, model.pos_embed, grid)
    return timm_vit.checkpoint_filter_fn(state, model)  # type: ignore[arg-type]


def _build_mini(**arguments: Any) -> VisionTransformer:
    """Build a `vit_mini`, whose stem has a stride of 4 pixels, so that an image of 32 pixels has 8x8 patches.

    Arguments are those of timm's `VisionTransformer`. `patch_size` is the side of a patch in positions of the stem's
    output, so a token covers 8x8 pixels if it is 2.
    """
    width = arguments["embed_dim"]
    stem = ConvStem(
        in_chans=arguments.get("in_chans", 3),
        depth=2,
        channels=(width // 2, width),
        stride=(2, 2),
        act_layer=nn.GELU,
        device=arguments.get("device"),
        dtype=arguments.get("dtype"),
    )
    return VisionTransformer(**{"embed_layer": partial(HybridEmbed, backbone=stem), **arguments})


_TINY, _SMALL, _BASE = (
    {"patch_size": 16, "embed_dim": width, "depth": 12, "num_heads": width // 64} for width in (192, 384, 768)
)
_DRLOC = {"drloc_vit_base_patch16_224": {**_BASE, "qkv_bias": False, "proj_drop_rate": 0.1}}  # 86.5M parameters
_ESVIT = {
    "esvit_deit_tiny_patch16_224": {**_TINY, "drop_path_rate": 0.1},  # 5.7M parameters
    "esvit_deit_small_patch16_224": {**_SMALL, "drop_path_rate": 0.1},  # 22.1M parameters
    "esvit_vit_base_patch16_224": {**_BASE, "drop_path_rate": 0.1},  # 86.6M parameters
}
# Images have 64 patches of 4 pixels, or 256 patches of 2 pixels. The numbers of parameters include a classifier for
# 100 classes.
_CIFAR = {
    "vit_tiny_cifar_patch4": {**_TINY, "num_heads": 4, "patch_size": 4},  # 5.4M parameters
    "vit_small_cifar_patch4": {**_SMALL, "num_heads": 8, "patch_size": 4},  # 21.4M parameters
    "vit_tiny_cifar_patch2": {**_TINY, "num_heads": 4, "patch_size": 2},  # 5.4M parameters
    "vit_small_cifar_patch2": {**_SMALL, "num_heads": 8, "patch_size": 2},  # 21.4M parameters
}
_MINI = {
    "vit_mini": {
        "patch_size": 1,
        "embed_dim": 128,
        "depth": 6,
        "num_heads": 4,
        "mlp_ratio": 3.0,
        "class_token": False,
        "global_pool": "avg",
        "fc_norm": False,  # normalise the patch tokens before averaging, so that the grid is normalised too
    }
}
_PUBLISHED_CFG = make_default_cfg("patch_embed.proj", fixed_input_size=True, crop_pct=DEIT_CROP_RATIO, license="mit")
# ImageNet's normalisation, as for any timm model without weights. A run uses the statistics of its images instead.
_SMALL_IMAGES: dict[str, Any] = {"input_size": (3, 32, 32), "crop_pct": 1.0, "fixed_input_size": True}
default_cfgs = generate_default_cfgs(
    {
        **dict.fromkeys((*_DRLOC, *_ESVIT), _PUBLISHED_CFG),
        **dict.fromkeys(_CIFAR, make_default_cfg("patch_embed.proj", num_classes=100, **_SMALL_IMAGES)),
        **dict.fromkeys(_MINI, make_default_cfg("patch_embed.backbone.0.conv", **_SMALL_IMAGES)),
    }
)
for _paper, _model, _variants in (
    ("ViT in the papers' programs", DrlocViT, _DRLOC),
    ("ViT in the papers' programs", EsvitViT, _ESVIT),
    ("plain ViT, DHVT's baseline", VisionTransformer, _CIFAR),
    ("paucal", _build_mini, _MINI),
):
    register_variants(__name__, _paper, _model, _variants, checkpoint_filter_fn, 3)
