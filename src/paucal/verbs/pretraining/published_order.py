"""Swin as EsViT builds it, under timm's names of its weights."""

from dataclasses import replace

import timm

from paucal.methods.pretraining_settings import PretrainSettings

OWN = "esvit_"  # before timm's names


def with_published_order(settings: PretrainSettings) -> tuple[PretrainSettings, list[str]]:
    """Build Swin as EsViT does, whose windows are padded before they are shifted: crops of 96 pixels need it.

    The weights have timm's names and shapes, and timm's own Swin loads them strictly.
    """
    name = f"{OWN}{settings.model}"
    if timm_name(name) == name:
        return settings, []
    text = (
        f"{settings.model} is built as {name}, which pads before it shifts; timm's {settings.model} loads its weights"
    )
    return replace(settings, model=name), [text]


def timm_name(name: str) -> str:
    """Return the name under which timm has a Swin that is built in EsViT's order; other names stay.

    Example:
        >>> timm_name("esvit_swin_tiny_patch4_window7_224"), timm_name("esvit_cvt_tiny")
        ('swin_tiny_patch4_window7_224', 'esvit_cvt_tiny')
    """
    return name.removeprefix(OWN) if name.startswith(f"{OWN}swin_") and name in timm.list_models() else name
