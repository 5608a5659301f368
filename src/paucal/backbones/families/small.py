"""A small vision transformer for small images, `vit_mini`, registered with timm.

timm's smallest transformers have 5 million parameters and patches of 16 pixels. `vit_mini` has about a million
parameters. A convolutional stem divides images into patches of 4 pixels; for few images, this trains far better than a
linear patch embedding (Xiao et al. 2021, "Early Convolutions Help Transformers See Better"). All layers are timm's:
`VisionTransformer` with `HybridEmbed` and `ConvStem`. The classifier reads the mean of the patch tokens, so there is no
class token.
"""

from functools import partial
from typing import Any

from timm.layers.hybrid_embed import HybridEmbed
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from timm.models.vision_transformer_hybrid import ConvStem
from torch import nn

from paucal.backbones.families.common.contract import make_default_cfg

PAPER = "paucal"  # in the table of models

# ImageNet's normalisation, as for any timm model without weights. A run uses the statistics of its images instead.
default_cfgs = generate_default_cfgs(
    {
        "vit_mini": make_default_cfg(
            "patch_embed.backbone.0.conv", input_size=(3, 32, 32), crop_pct=1.0, fixed_input_size=True
        )
    }
)


@register_model
def vit_mini(pretrained: bool = False, **arguments: Any) -> VisionTransformer:
    """Build a ViT with 6 blocks, 128 channels and a stem with stride 4, so that an image of 32 pixels has 8x8 patches.

    Other arguments are those of timm's `VisionTransformer`. `patch_size` is the side of a patch in positions of the
    stem's output: with 2, a token covers 8x8 pixels.
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
        "fc_norm": False,  # normalise the patch tokens before averaging, so that the grid is normalised too
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
