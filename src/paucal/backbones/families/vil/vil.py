"""The variants of Vision Longformer (Zhang et al. 2021), registered with timm; `vil_model` holds the model.

Drop-path is no part of a variant: pass `drop_path_rate` (published: 0.1 for all). `positions="absolute"` gives the
published variants with absolute positions.
"""

from collections.abc import Mapping
from typing import Any

from timm.models import generate_default_cfgs, register_model

from paucal.backbones.families.common.contract import DEIT_CROP, build, configuration
from paucal.backbones.families.vil.model import VisionLongformer, checkpoint_filter_fn

FIRST_CONVOLUTION = "stages.0.embed.proj"

_CONFIG = configuration(FIRST_CONVOLUTION, crop_pct=DEIT_CROP)
default_cfgs = generate_default_cfgs(dict.fromkeys(("vil_tiny", "vil_small"), _CONFIG))


def create(name: str, pretrained: bool, settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> VisionLongformer:
    """Build a variant of that registered name; the user's `arguments` override its `settings`."""
    return build(VisionLongformer, name, pretrained, settings, arguments, pretrained_filter_fn=checkpoint_filter_fn)


@register_model
def vil_tiny(pretrained: bool = False, **arguments: Any) -> VisionLongformer:
    """Build ViL-Tiny, 6.7M parameters; arguments are those of `VisionLongformer`."""
    settings = {"embed_dims": (48, 96, 192, 384), "depths": (1, 1, 9, 1), "num_heads": (1, 3, 3, 6)}
    return create("vil_tiny", pretrained, settings, arguments)


@register_model
def vil_small(pretrained: bool = False, **arguments: Any) -> VisionLongformer:
    """Build ViL-Small, 24.7M parameters; arguments are those of `VisionLongformer`."""
    settings = {"embed_dims": (96, 192, 384, 768), "depths": (1, 2, 8, 1), "num_heads": (3, 3, 6, 12)}
    return create("vil_small", pretrained, settings, arguments)
