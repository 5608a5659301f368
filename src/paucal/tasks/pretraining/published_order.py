"""Swin with EsViT's order of operations, and weights named as in timm."""

from dataclasses import replace

import timm

from paucal.methods.pretraining_settings import PretrainSettings

PREFIX = "esvit_"  # prefix of timm's names


def with_published_order(settings: PretrainSettings) -> tuple[PretrainSettings, list[str]]:
    """Build Swin as EsViT does: windows are padded before they are shifted, which crops of 96 pixels need.

    The weights have timm's names and shapes, and timm's own Swin loads them strictly.
    """
    name = f"{PREFIX}{settings.model}"
    if timm_name(name) == name:
        return settings, []
    text = (
        f"{settings.model} is built as {name}, which pads before it shifts; timm's {settings.model} loads its weights"
    )
    return replace(settings, model=name), [text]


def timm_name(name: str) -> str:
    """Return timm's name of a Swin built as by EsViT; other names are returned unchanged.

    Example:
        >>> timm_name("esvit_swin_tiny_patch4_window7_224"), timm_name("esvit_cvt_tiny")
        ('swin_tiny_patch4_window7_224', 'esvit_cvt_tiny')
    """
    return name.removeprefix(PREFIX) if name.startswith(f"{PREFIX}swin_") and name in timm.list_models() else name
