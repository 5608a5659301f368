"""The Vision Longformers of EsViT (Li et al. 2022), registered with timm.

These variants are wider and deeper than the variants in the ViL paper, and their last stages have more heads. The
variants are built without drop-path unless `drop_path_rate` is passed (published: 0.1).
"""

from timm.models import generate_default_cfgs

from paucal.backbones.families.common.contract import DEIT_CROP_RATIO, make_default_cfg, register_variants
from paucal.backbones.families.vil import FIRST_CONVOLUTION, VisionLongformer, checkpoint_filter_fn

PAPER = "ViL in EsViT (Li et al. 2022)"  # in the table of models

_TINY = {"embed_dims": (96, 192, 384, 768), "depths": (2, 2, 6, 2)}
# Each variant has 28.3M parameters. The published weights of `esvit_vil_tiny` were trained on crops of 224 pixels and,
# with `bias_resize="picture"`, on crops of 96 pixels. Features of 224-pixel images do not depend on `bias_resize`.
_VARIANTS = {
    "esvit_vil_tiny": {**_TINY, "num_heads": (3, 6, 12, 24)},  # as in the published training command
    "esvit_vil_tiny_paper_heads": {**_TINY, "num_heads": (3, 3, 6, 12)},  # as in the paper's Table 6
}
default_cfgs = generate_default_cfgs(
    dict.fromkeys(_VARIANTS, make_default_cfg(FIRST_CONVOLUTION, crop_pct=DEIT_CROP_RATIO))
)
register_variants(__name__, VisionLongformer, _VARIANTS, checkpoint_filter_fn)
