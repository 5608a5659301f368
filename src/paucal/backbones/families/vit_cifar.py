"""Plain vision transformers for images of 32 pixels, the baselines of the DHVT paper: timm's `VisionTransformer`.

The paper's ViT-T has 192 channels and 4 heads, and an accuracy of 67.59 % on CIFAR-100 (Table 4); with `num_heads=3`,
its accuracy is 66.50 %. The supplement does not give the number of heads of a ViT-S for 32 pixels; here, it has 8
heads like DHVT-S. The variants are built without drop-path unless `drop_path_rate` is passed (published: 0.1 for all).
"""

from timm.models import generate_default_cfgs
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

from paucal.backbones.families.common.contract import make_default_cfg, register_variants

PAPER = "plain ViT, DHVT's baseline"  # in the table of models

_TINY = {"embed_dim": 192, "depth": 12, "num_heads": 4}
_SMALL = {"embed_dim": 384, "depth": 12, "num_heads": 8}
# Images have 64 patches of 4 pixels, or 256 patches of 2 pixels. Parameters are counted with 100 classes.
_VARIANTS = {
    "vit_tiny_cifar_patch4": {**_TINY, "patch_size": 4},  # 5.4M parameters
    "vit_small_cifar_patch4": {**_SMALL, "patch_size": 4},  # 21.4M parameters
    "vit_tiny_cifar_patch2": {**_TINY, "patch_size": 2},  # 5.4M parameters
    "vit_small_cifar_patch2": {**_SMALL, "patch_size": 2},  # 21.4M parameters
}
_CFG = make_default_cfg(
    "patch_embed.proj", num_classes=100, input_size=(3, 32, 32), crop_pct=1.0, fixed_input_size=True
)
default_cfgs = generate_default_cfgs(dict.fromkeys(_VARIANTS, _CFG))


register_variants(__name__, VisionTransformer, _VARIANTS, checkpoint_filter_fn, 3)
