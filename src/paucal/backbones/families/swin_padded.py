"""Swin as in the Swin authors' code for detection and segmentation (Liu et al., ICCV 2021), for images of any size.

Here, maps are padded, then shifted, whereas timm shifts maps before padding. The models and their weights are timm's
Swins with the same names without `padded_`. At 224 pixels, the outputs are equal. The outputs differ if the sides of a
map are not multiples of the window (see `paucal.backbones.families.common.windows`).
"""

from collections.abc import Mapping
from typing import Any

from timm.models import generate_default_cfgs
from timm.models._registry import get_arch_pretrained_cfgs
from timm.models.swin_transformer import checkpoint_filter_fn as checkpoint_filter_fn

from paucal.backbones.families.common.contract import register_variants
from paucal.backbones.families.swin_esvit import EsvitSwin

PAPER = "Swin (Liu et al. 2021), padded before it is shifted"  # in the table of models

PREFIX, NORM_EPS = "padded_", 1e-5  # prefix of the models' names, and epsilon of their layer norms
SIZES: Mapping[str, dict[str, Any]] = {
    "tiny": {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)},
    "small": {"embed_dim": 96, "depths": (2, 2, 18, 2), "num_heads": (3, 6, 12, 24)},
    "base": {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)},
    "large": {"embed_dim": 192, "depths": (2, 2, 18, 2), "num_heads": (6, 12, 24, 48)},
}
ARGUMENTS_BY_NAME = {f"swin_{size}_patch4_window7_224": arguments for size, arguments in SIZES.items()}
default_cfgs = generate_default_cfgs(
    {f"{PREFIX}{tagged}": cfg for name in ARGUMENTS_BY_NAME for tagged, cfg in get_arch_pretrained_cfgs(name).items()}
)


_VARIANTS = {
    f"{PREFIX}{name}": {"window_size": 7, "norm_eps": NORM_EPS, **sizes} for name, sizes in ARGUMENTS_BY_NAME.items()
}
register_variants(__name__, EsvitSwin, _VARIANTS, checkpoint_filter_fn)
