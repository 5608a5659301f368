"""Swin as EsViT trains it: for any image size, above all for the small crops of multi-crop training.

Li et al. 2022, "Efficient Self-supervised Vision Transformers for Representation Learning", Table 6: Swin-T, S and B
with windows of 7 and of 14. The parameters are those of timm's Swin of the same size, and weights go both ways; at 224
pixels both compute the same, at other sizes timm pads in another order (see `windows`).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from timm.layers.patch_embed import PatchEmbed
from timm.models import generate_default_cfgs, register_model
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from timm.models.swin_transformer import checkpoint_filter_fn as checkpoint_filter_fn
from torch import Tensor, nn

from paucal.backbones.families.common.contract import DEIT_CROP, build, configuration
from paucal.backbones.families.swin.layers import PADDINGS, PaddedSwinBlock


class AnySizePatchEmbed(PatchEmbed):
    """timm's patch embedding for images of any size, filled up with zeros at the right and the bottom."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{**arguments, "strict_img_size": False, "dynamic_img_pad": True})

    def forward(self, x: Tensor) -> Tensor:
        """Embed the patches; compiled code is bound to the size of the images."""
        # torch.compile would take a second image size as a reason to leave the size open, and then spend minutes on
        # the algebra of windows of unknown number. A range needs its length.
        _ = range(x.shape[2]), range(x.shape[3])
        return super().forward(x)


class EsvitSwin(SwinTransformer):
    """timm's Swin with the papers' padding.

    Windows and shifts are fixed when the model is built, from `img_size`: where a stage's grid is no larger than its
    window, the window becomes the grid and nothing is shifted. Images of any other size can then be given; a window is
    filled up with padding where the map ends, and an image that is no multiple of the patch with zeros.

    Args:
        padding: what becomes of padded cells. "published": they take part in the attention like others, with the bias
            of the projection as their content, as in EsViT's program; a 96-pixel crop spends 5 of 6 parts of its
            last stage on them. "masked": cells do not see them. "shrunk": a window larger than the map is shrunk to
            it, with the relative positions looked up in the same table, and what padding is left is masked.
        norm_eps: of all norms; 1e-6 in EsViT.
        arguments: those of timm's `SwinTransformer`.

    Raises:
        ValueError: no such padding.
    """

    def __init__(self, *, padding: str = "published", norm_eps: float = 1e-6, **arguments: Any) -> None:
        if padding not in PADDINGS:
            raise ValueError(f"padding is {padding!r}; EsvitSwin has {', '.join(map(repr, PADDINGS))}")
        defaults = {"norm_layer": partial(nn.LayerNorm, eps=norm_eps), "embed_layer": AnySizePatchEmbed}
        super().__init__(**{**defaults, **arguments, "strict_img_size": False})
        self.padding = padding
        for module in self.modules():
            if isinstance(module, SwinTransformerBlock):
                PaddedSwinBlock.adopt(module, padding)


default_cfgs = generate_default_cfgs(
    {
        f"esvit_swin_{size}_patch4_window{window}_224": configuration(
            "patch_embed.proj",
            "head.fc",
            pool_size=(7, 7),
            fixed_input_size=True,
            crop_pct=DEIT_CROP,
            license="mit",
        )
        for size in ("tiny", "small", "base")
        for window in (7, 14)
    }
)
_TINY = {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24), "drop_path_rate": 0.1}
_SMALL = {**_TINY, "depths": (2, 2, 18, 2), "drop_path_rate": 0.2}
_BASE = {**_SMALL, "embed_dim": 128, "num_heads": (4, 8, 16, 32)}


def _swin(name: str, pretrained: bool, size: Mapping[str, Any], window: int, arguments: Mapping[str, Any]) -> EsvitSwin:
    settings = {**size, "window_size": window}
    return build(EsvitSwin, name, pretrained, settings, arguments, pretrained_filter_fn=checkpoint_filter_fn)


@register_model
def esvit_swin_tiny_patch4_window7_224(pretrained: bool = False, **arguments: Any) -> EsvitSwin:
    """Build Swin-T with windows of 7 cells (28.3 M parameters)."""
    return _swin("esvit_swin_tiny_patch4_window7_224", pretrained, _TINY, 7, arguments)


@register_model
def esvit_swin_tiny_patch4_window14_224(pretrained: bool = False, **arguments: Any) -> EsvitSwin:
    """Build Swin-T with windows of 14 cells, 7 in the last stage."""
    return _swin("esvit_swin_tiny_patch4_window14_224", pretrained, _TINY, 14, arguments)


@register_model
def esvit_swin_small_patch4_window7_224(pretrained: bool = False, **arguments: Any) -> EsvitSwin:
    """Build Swin-S with windows of 7 cells (49.6 M parameters)."""
    return _swin("esvit_swin_small_patch4_window7_224", pretrained, _SMALL, 7, arguments)


@register_model
def esvit_swin_small_patch4_window14_224(pretrained: bool = False, **arguments: Any) -> EsvitSwin:
    """Build Swin-S with windows of 14 cells, 7 in the last stage."""
    return _swin("esvit_swin_small_patch4_window14_224", pretrained, _SMALL, 14, arguments)


@register_model
def esvit_swin_base_patch4_window7_224(pretrained: bool = False, **arguments: Any) -> EsvitSwin:
    """Build Swin-B with windows of 7 cells (87.8 M parameters)."""
    return _swin("esvit_swin_base_patch4_window7_224", pretrained, _BASE, 7, arguments)


@register_model
def esvit_swin_base_patch4_window14_224(pretrained: bool = False, **arguments: Any) -> EsvitSwin:
    """Build Swin-B with windows of 14 cells, 7 in the last stage."""
    return _swin("esvit_swin_base_patch4_window14_224", pretrained, _BASE, 14, arguments)
