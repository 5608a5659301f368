"""The Vision Longformers that EsViT pre-trains (Li et al. 2022), registered with timm; `vil_model` holds the model.

They are wider and deeper than the variants of the ViL paper, and their last stages have more heads. Drop-path is no
part of a variant: pass `drop_path_rate` (published: 0.1).
"""

from typing import Any

from timm.models import generate_default_cfgs, register_model

from paucal.backbones.families.common.contract import DEIT_CROP, configuration
from paucal.backbones.families.vil.model import VisionLongformer
from paucal.backbones.families.vil.model import checkpoint_filter_fn as checkpoint_filter_fn
from paucal.backbones.families.vil.vil import FIRST_CONVOLUTION, create

_CONFIG = configuration(FIRST_CONVOLUTION, crop_pct=DEIT_CROP)
default_cfgs = generate_default_cfgs(dict.fromkeys(("esvit_vil_tiny", "esvit_vil_tiny_paper_heads"), _CONFIG))


@register_model
def esvit_vil_tiny(pretrained: bool = False, **arguments: Any) -> VisionLongformer:
    """Build EsViT's ViL-T with the heads of its published command, 28.3M parameters.

    Its weights were trained on crops of 224 and 96 pixels, the latter with `bias_resize="picture"`; features of 224
    pixels are the same without it.
    """
    settings = {"embed_dims": (96, 192, 384, 768), "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)}
    return create("esvit_vil_tiny", pretrained, settings, arguments)


@register_model
def esvit_vil_tiny_paper_heads(pretrained: bool = False, **arguments: Any) -> VisionLongformer:
    """Build EsViT's ViL-T with the heads of the paper's Table 6, 28.3M parameters."""
    settings = {"embed_dims": (96, 192, 384, 768), "depths": (2, 2, 6, 2), "num_heads": (3, 3, 6, 12)}
    return create("esvit_vil_tiny_paper_heads", pretrained, settings, arguments)
