"""The variants of DHVT, registered with timm; `dhvt_model` holds the model.

Names, widths and heads are those of the published program (the supplement's Table 11). Drop-path is no part of a
variant: pass `drop_path_rate` (published: 0.1 for all). Inputs are normalised by ImageNet's statistics throughout, as
published.

`dhvt_mini` is paucal's own: as wide and deep as `vit_mini`, for small images and short runs.

The published program also registers DHVTs under DeiT's names; here these are timm's DeiTs, and `vit_cifar` holds the
plain transformers that DHVT is compared with, which that program cannot build.
"""

from collections.abc import Mapping
from typing import Any

from timm.models import generate_default_cfgs, register_model

from paucal.backbones.families.common.contract import build, configuration
from paucal.backbones.families.dhvt.model import Dhvt, checkpoint_filter_fn

_TINY, _SMALL = {"embed_dim": 192}, {"embed_dim": 384}
_OVERLAPPING, _PLAIN = "patch_embed.proj.0.0", "patch_embed.proj"  # the layer that reads the image
_CIFAR: dict[str, Any] = {"num_classes": 100, "input_size": (3, 32, 32), "crop_pct": 1.0}
_LARGE: dict[str, Any] = {"crop_pct": 0.875}

default_cfgs = generate_default_cfgs(
    {
        "dhvt_mini": configuration(_OVERLAPPING, num_classes=1000, input_size=(3, 32, 32), crop_pct=1.0),
        "dhvt_tiny_cifar_patch4": configuration(_OVERLAPPING, **_CIFAR),
        "dhvt_small_cifar_patch4": configuration(_OVERLAPPING, **_CIFAR),
        "dhvt_tiny_cifar_patch2": configuration(_OVERLAPPING, **_CIFAR),
        "dhvt_small_cifar_patch2": configuration(_OVERLAPPING, **_CIFAR),
        "dhvt_tiny_domain_patch16": configuration(_OVERLAPPING, num_classes=345, **_LARGE),
        "dhvt_small_domain_patch16": configuration(_OVERLAPPING, num_classes=345, **_LARGE),
        "dhvt_tiny_imagenet_patch16": configuration(_OVERLAPPING, **_LARGE),
        "dhvt_small_imagenet_patch16": configuration(_OVERLAPPING, **_LARGE),
    }
)


def _create(name: str, pretrained: bool, settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> Dhvt:
    merged = {"img_size": default_cfgs[name].default.input_size[1:], **settings, **arguments}
    overlay: dict[str, Any] = dict(merged.pop("pretrained_cfg_overlay", None) or {})
    if merged.get("sope") is False:
        overlay["first_conv"] = _PLAIN
    return build(
        Dhvt,
        name,
        pretrained,
        {},
        merged,
        pretrained_filter_fn=checkpoint_filter_fn,
        pretrained_cfg_overlay=overlay,
        feature_cfg={"out_indices": 3},  # the last three blocks, as for timm's ViT
    )


@register_model
def dhvt_mini(pretrained: bool = False, **arguments: Any) -> Dhvt:
    """Build a DHVT of 6 blocks and 128 channels for images of 32 pixels in patches of 4, 1.5M parameters."""
    sizes = {"embed_dim": 128, "depth": 6, "patch_size": 4, "num_heads": 4}
    return _create("dhvt_mini", pretrained, sizes, arguments)


@register_model
def dhvt_tiny_cifar_patch4(pretrained: bool = False, **arguments: Any) -> Dhvt:
    """Build DHVT-T for images of 32 pixels in patches of 4, 6.0M parameters with 100 classes."""
    return _create("dhvt_tiny_cifar_patch4", pretrained, {**_TINY, "patch_size": 4, "num_heads": 4}, arguments)


@register_model
def dhvt_small_cifar_patch4(pretrained: bool = False, **arguments: Any) -> Dhvt:
    """Build DHVT-S for images of 32 pixels in patches of 4, 23.4M parameters with 100 classes."""
    return _create("dhvt_small_cifar_patch4", pretrained, {**_SMALL, "patch_size": 4, "num_heads": 8}, arguments)


@register_model
def dhvt_tiny_cifar_patch2(pretrained: bool = False, **arguments: Any) -> Dhvt:
    """Build DHVT-T for images of 32 pixels in patches of 2, 5.8M parameters with 100 classes."""
    return _create("dhvt_tiny_cifar_patch2", pretrained, {**_TINY, "patch_size": 2, "num_heads": 4}, arguments)


@register_model
def dhvt_small_cifar_patch2(pretrained: bool = False, **arguments: Any) -> Dhvt:
    """Build DHVT-S for images of 32 pixels in patches of 2, 22.8M parameters with 100 classes."""
    return _create("dhvt_small_cifar_patch2", pretrained, {**_SMALL, "patch_size": 2, "num_heads": 8}, arguments)


@register_model
def dhvt_tiny_domain_patch16(pretrained: bool = False, **arguments: Any) -> Dhvt:
    """Build DHVT-T as trained from scratch on DomainNet, 6.1M parameters with 345 classes.

    It has 4 heads where the one for ImageNet has 3, whose weights it therefore cannot take in full.
    """
    return _create("dhvt_tiny_domain_patch16", pretrained, {**_TINY, "patch_size": 16, "num_heads": 4}, arguments)


@register_model
def dhvt_small_domain_patch16(pretrained: bool = False, **arguments: Any) -> Dhvt:
    """Build DHVT-S as trained from scratch on DomainNet, 23.8M parameters with 345 classes."""
    return _create("dhvt_small_domain_patch16", pretrained, {**_SMALL, "patch_size": 16, "num_heads": 6}, arguments)


@register_model
def dhvt_tiny_imagenet_patch16(pretrained: bool = False, **arguments: Any) -> Dhvt:
    """Build DHVT-T as trained on ImageNet and fine-tuned from it, 6.3M parameters."""
    return _create("dhvt_tiny_imagenet_patch16", pretrained, {**_TINY, "patch_size": 16, "num_heads": 3}, arguments)


@register_model
def dhvt_small_imagenet_patch16(pretrained: bool = False, **arguments: Any) -> Dhvt:
    """Build DHVT-S as trained on ImageNet and fine-tuned from it, 24.0M parameters."""
    return _create("dhvt_small_imagenet_patch16", pretrained, {**_SMALL, "patch_size": 16, "num_heads": 6}, arguments)
