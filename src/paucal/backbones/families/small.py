"""A small vision transformer for small images, `vit_mini`, registered with timm.

timm's transformers start at 5 million parameters and patches of 16 pixels. This one has about a million and makes
4-pixel cells with a convolutional stem, which trains far better than bare patches when images are few (Xiao et al.
2021, "Early Convolutions Help Transformers See Better"). Its parts are timm's own: `VisionTransformer` on `HybridEmbed`
over `ConvStem`. Cells are averaged for the classifier, so there is no class token.
"""

from functools import partial
from typing import Any

from timm.layers.hybrid_embed import HybridEmbed
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from timm.models.vision_transformer_hybrid import ConvStem
from torch import nn

from paucal.backbones.families.common.contract import configuration

# The statistics are ImageNet's, as for any timm model without weights; the run's own replace them.
default_cfgs = generate_default_cfgs(
    {
        "vit_mini": configuration(
            "patch_embed.backbone.0.conv", input_size=(3, 32, 32), crop_pct=1.0, fixed_input_size=True
        )
    }
)


@register_model
def vit_mini(pretrained: bool = False, **arguments: Any) -> VisionTransformer:
    """Build a ViT of 6 blocks and 128 channels on a stem of stride 4: 32 pixels become 8x8 cells.

    Any argument of timm's `VisionTransformer` may be given; `patch_size` counts cells of the stem, so that 2
    makes a token of 8x8 pixels.
    """
    width = arguments.get("embed_dim", 128)
    stem = ConvStem(
        in_chans=arguments.get("in_chans", 3),
        depth=2,
        channels=(width // 2, width),
        stride=(2, 2),
        act_layer=nn.GELU,
        device=arguments.get("device"),
        dtype=arguments.get("dtype"),
    )
    settings: dict[str, Any] = {
        "patch_size": 1,
        "embed_dim": width,
        "depth": 6,
        "num_heads": 4,
        "mlp_ratio": 3.0,
        "class_token": False,
        "global_pool": "avg",
        "fc_norm": False,  # the final norm acts on the cells before they are averaged, so the grid is normed too
        "embed_layer": partial(HybridEmbed, backbone=stem),
    }
    return build_model_with_cfg(
        VisionTransformer,
        "vit_mini",
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        **{**settings, **arguments},
    )
