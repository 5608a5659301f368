"""The variants of T2T-ViT, registered with timm; `t2t_model` holds the model.

Drop-path is no part of a variant: pass `drop_path_rate` (published: 0.1; 0 in the program of DrLoc). Other sizes than
224 pixels are built with `img_size`; checkpoints of 224 pixels then load with an interpolated position table. Images of
few pixels want a smaller `patch_size`: 4 makes 8x8 cells of 32 pixels.
"""

from collections.abc import Mapping
from typing import Any

from timm.models import generate_default_cfgs, register_model

from paucal.backbones.families.common.contract import build, configuration
from paucal.backbones.families.t2t.model import T2tVit, checkpoint_filter_fn

_FIRST = {"performer": "tokens_to_token.attention1.kqv", "transformer": "tokens_to_token.attention1.attn.qkv"}
_SMALL = {"embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0}


def _configuration(tokens: str) -> dict[str, Any]:
    return configuration(_FIRST[tokens], fixed_input_size=True, license="bsd-3-clause-clear")


default_cfgs = generate_default_cfgs(
    {
        **{f"t2t_vit_{depth}": _configuration("performer") for depth in (7, 10, 12, 14, 19, 24)},
        **{f"t2t_vit_t_{depth}": _configuration("transformer") for depth in (14, 19, 24)},
    }
)


def _create(name: str, pretrained: bool, settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> T2tVit:
    merged = {**settings, **arguments}
    overlay: dict[str, Any] = dict(merged.pop("pretrained_cfg_overlay", None) or {})
    if merged.get("tokens_type") in _FIRST:  # the model itself refuses others
        overlay["first_conv"] = _FIRST[merged["tokens_type"]]
    return build(
        T2tVit,
        name,
        pretrained,
        {},
        merged,
        pretrained_filter_fn=checkpoint_filter_fn,
        pretrained_cfg_overlay=overlay,
        feature_cfg={"out_indices": 3},  # the last three blocks, as for timm's ViT
    )


@register_model
def t2t_vit_7(pretrained: bool = False, **arguments: Any) -> T2tVit:
    """Build T2T-ViT-7, 4.3M parameters, with linear attention in its token layers."""
    settings = {"depth": 7, **_SMALL}
    return _create("t2t_vit_7", pretrained, settings, arguments)


@register_model
def t2t_vit_10(pretrained: bool = False, **arguments: Any) -> T2tVit:
    """Build T2T-ViT-10, 5.9M parameters, with linear attention in its token layers."""
    settings = {"depth": 10, **_SMALL}
    return _create("t2t_vit_10", pretrained, settings, arguments)


@register_model
def t2t_vit_12(pretrained: bool = False, **arguments: Any) -> T2tVit:
    """Build T2T-ViT-12, 6.9M parameters, with linear attention in its token layers."""
    settings = {"depth": 12, **_SMALL}
    return _create("t2t_vit_12", pretrained, settings, arguments)


@register_model
def t2t_vit_14(pretrained: bool = False, **arguments: Any) -> T2tVit:
    """Build T2T-ViT-14, 21.5M parameters, with linear attention in its token layers."""
    settings = {"embed_dim": 384, "depth": 14, "num_heads": 6}
    return _create("t2t_vit_14", pretrained, settings, arguments)


@register_model
def t2t_vit_19(pretrained: bool = False, **arguments: Any) -> T2tVit:
    """Build T2T-ViT-19, 39.2M parameters, with linear attention in its token layers."""
    settings = {"embed_dim": 448, "depth": 19, "num_heads": 7}
    return _create("t2t_vit_19", pretrained, settings, arguments)


@register_model
def t2t_vit_24(pretrained: bool = False, **arguments: Any) -> T2tVit:
    """Build T2T-ViT-24, 64.1M parameters, with linear attention in its token layers."""
    settings = {"embed_dim": 512, "depth": 24, "num_heads": 8}
    return _create("t2t_vit_24", pretrained, settings, arguments)


@register_model
def t2t_vit_t_14(pretrained: bool = False, **arguments: Any) -> T2tVit:
    """Build T2T-ViT_t-14, 21.5M parameters, with softmax attention in its token layers."""
    settings = {"embed_dim": 384, "depth": 14, "num_heads": 6, "tokens_type": "transformer"}
    return _create("t2t_vit_t_14", pretrained, settings, arguments)


@register_model
def t2t_vit_t_19(pretrained: bool = False, **arguments: Any) -> T2tVit:
    """Build T2T-ViT_t-19, 39.2M parameters, with softmax attention in its token layers."""
    settings = {"embed_dim": 448, "depth": 19, "num_heads": 7, "tokens_type": "transformer"}
    return _create("t2t_vit_t_19", pretrained, settings, arguments)


@register_model
def t2t_vit_t_24(pretrained: bool = False, **arguments: Any) -> T2tVit:
    """Build T2T-ViT_t-24, 64.1M parameters, with softmax attention in its token layers."""
    settings = {"embed_dim": 512, "depth": 24, "num_heads": 8, "tokens_type": "transformer"}
    return _create("t2t_vit_t_24", pretrained, settings, arguments)
