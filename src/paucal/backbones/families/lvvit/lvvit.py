"""The variants of LV-ViT, registered with timm; `lvvit_model` holds the model.

Drop-path is no part of a variant: pass `drop_path_rate` (published: 0.1 for T and S, 0.2 for M, 0.3 for L). Other sizes
than 224 pixels are built with `img_size`; checkpoints of 224 pixels then load with a resampled position table.
"""

from collections.abc import Mapping
from typing import Any

from timm.models import generate_default_cfgs, register_model

from paucal.backbones.families.common.contract import build, configuration
from paucal.backbones.families.lvvit.model import LvVit, checkpoint_filter_fn
from paucal.backbones.families.lvvit.stems import STEMS, first_convolution

_DENSE = ("head", "aux_head")

default_cfgs = generate_default_cfgs(
    {
        "lvvit_t": configuration("patch_embed.conv1", _DENSE, fixed_input_size=True),
        "lvvit_s": configuration("patch_embed.conv1", _DENSE, fixed_input_size=True),
        "lvvit_m": configuration("patch_embed.conv1", _DENSE, fixed_input_size=True, crop_pct=1.0),
        "lvvit_l": configuration("patch_embed.conv1", _DENSE, fixed_input_size=True, crop_pct=1.0),
        "lvvit_s_plain": configuration("patch_embed.conv1", fixed_input_size=True),
        "lvvit_vit_s": configuration("patch_embed.proj", fixed_input_size=True),
    }
)


def _create(name: str, pretrained: bool, settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> LvVit:
    merged = {**settings, **arguments}
    overlay: dict[str, Any] = dict(merged.pop("pretrained_cfg_overlay", None) or {})
    if merged.get("stem") in STEMS:  # the model itself refuses others
        overlay["first_conv"] = first_convolution(merged["stem"])
    if "aux_head" in merged:
        overlay["classifier"] = _DENSE if merged["aux_head"] else "head"
    return build(
        LvVit,
        name,
        pretrained,
        {},
        merged,
        pretrained_filter_fn=checkpoint_filter_fn,
        pretrained_cfg_overlay=overlay,
        feature_cfg={"out_indices": 3},  # the last three blocks, as for timm's ViT
    )


@register_model
def lvvit_t(pretrained: bool = False, **arguments: Any) -> LvVit:
    """Build LV-ViT-T, 8.5M parameters; its residual branches are not divided."""
    settings = {"embed_dim": 240, "depth": 12, "num_heads": 4, "skip_lam": 1.0}
    return _create("lvvit_t", pretrained, settings, arguments)


@register_model
def lvvit_s(pretrained: bool = False, **arguments: Any) -> LvVit:
    """Build LV-ViT-S, 26.2M parameters."""
    settings = {"embed_dim": 384, "depth": 16, "num_heads": 6, "skip_lam": 2.0}
    return _create("lvvit_s", pretrained, settings, arguments)


@register_model
def lvvit_m(pretrained: bool = False, **arguments: Any) -> LvVit:
    """Build LV-ViT-M, 55.8M parameters."""
    settings = {"embed_dim": 512, "depth": 20, "num_heads": 8, "skip_lam": 2.0}
    return _create("lvvit_m", pretrained, settings, arguments)


@register_model
def lvvit_l(pretrained: bool = False, **arguments: Any) -> LvVit:
    """Build LV-ViT-L, 150.0M parameters; its stem is twice as wide and its residual branches are divided by 3."""
    settings = {"embed_dim": 768, "depth": 24, "num_heads": 12, "skip_lam": 3.0, "stem_width": 128}
    return _create("lvvit_l", pretrained, settings, arguments)


@register_model
def lvvit_s_plain(pretrained: bool = False, **arguments: Any) -> LvVit:
    """Build LV-ViT-S without the classifier of tokens, 25.8M parameters (`lvvit` in the published program)."""
    settings = {"embed_dim": 384, "depth": 16, "num_heads": 6, "skip_lam": 2.0, "aux_head": False}
    return _create("lvvit_s_plain", pretrained, settings, arguments)


@register_model
def lvvit_vit_s(pretrained: bool = False, **arguments: Any) -> LvVit:
    """Build the plain transformer that LV-ViT-S started from, 24.4M parameters (`vit` in the published program).

    It has one convolution of 16 pixels as its stem, undivided residual branches and no classifier of tokens.
    """
    settings = {
        "embed_dim": 384,
        "depth": 16,
        "num_heads": 6,
        "skip_lam": 1.0,
        "stem": "1_conv",
        "aux_head": False,
    }
    return _create("lvvit_vit_s", pretrained, settings, arguments)
