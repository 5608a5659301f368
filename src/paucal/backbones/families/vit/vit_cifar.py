"""Plain vision transformers for images of 32 pixels: what DHVT is compared with, as timm's `VisionTransformer`.

The paper's ViT-T has 192 channels and 4 heads (67.59 % on CIFAR-100, its Table 4; with 3 heads, `num_heads=3`, 66.50).
The supplement gives no heads for a ViT-S on 32 pixels; here it has DHVT-S's 8. Drop-path is no part of a variant:
pass `drop_path_rate` (published: 0.1 for all).
"""

from typing import Any

from timm.models import generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

from paucal.backbones.families.common.contract import build, configuration

_TINY, _SMALL = {"embed_dim": 192, "num_heads": 4}, {"embed_dim": 384, "num_heads": 8}
_CIFAR: dict[str, Any] = {
    "num_classes": 100,
    "input_size": (3, 32, 32),
    "crop_pct": 1.0,
    "fixed_input_size": True,
}

default_cfgs = generate_default_cfgs(
    {
        "vit_tiny_cifar_patch4": configuration("patch_embed.proj", **_CIFAR),
        "vit_small_cifar_patch4": configuration("patch_embed.proj", **_CIFAR),
        "vit_tiny_cifar_patch2": configuration("patch_embed.proj", **_CIFAR),
        "vit_small_cifar_patch2": configuration("patch_embed.proj", **_CIFAR),
    }
)


def _create(name: str, pretrained: bool, settings: dict[str, Any], arguments: dict[str, Any]) -> VisionTransformer:
    return build(
        VisionTransformer,
        name,
        pretrained,
        {"depth": 12, **settings},
        arguments,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": 3},
    )


@register_model
def vit_tiny_cifar_patch4(pretrained: bool = False, **arguments: Any) -> VisionTransformer:
    """Build ViT-T in patches of 4 pixels, 64 of them, 5.4M parameters with 100 classes."""
    return _create("vit_tiny_cifar_patch4", pretrained, {**_TINY, "patch_size": 4}, arguments)


@register_model
def vit_small_cifar_patch4(pretrained: bool = False, **arguments: Any) -> VisionTransformer:
    """Build ViT-S in patches of 4 pixels, 64 of them, 21.4M parameters with 100 classes."""
    return _create("vit_small_cifar_patch4", pretrained, {**_SMALL, "patch_size": 4}, arguments)


@register_model
def vit_tiny_cifar_patch2(pretrained: bool = False, **arguments: Any) -> VisionTransformer:
    """Build ViT-T in patches of 2 pixels, 256 of them, 5.4M parameters with 100 classes."""
    return _create("vit_tiny_cifar_patch2", pretrained, {**_TINY, "patch_size": 2}, arguments)


@register_model
def vit_small_cifar_patch2(pretrained: bool = False, **arguments: Any) -> VisionTransformer:
    """Build ViT-S in patches of 2 pixels, 256 of them, 21.4M parameters with 100 classes."""
    return _create("vit_small_cifar_patch2", pretrained, {**_SMALL, "patch_size": 2}, arguments)
