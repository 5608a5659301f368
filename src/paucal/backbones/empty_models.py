"""Build models without arithmetic, to find out which sizes and arguments they accept."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import timm
import torch
from timm.layers.patch_embed import PatchEmbed
from torch import nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import Size
from paucal.backbones.names import create_model
from paucal.backbones.probe import probe_images, undisturbed
from paucal.types import UserError

# Exceptions that timm's constructors and models raise at unsuitable sizes.
_REFUSALS = (
    *(AssertionError, AttributeError, RuntimeError, TypeError, ValueError, IndexError, ZeroDivisionError, UserError),
)


@dataclass(frozen=True)
class CacheKey:
    """Arguments of a model's constructor as a key of a cache.

    Attributes:
        text: The arguments as text, by which keys are compared.
        arguments: The arguments.
    """

    text: str
    arguments: Mapping[str, Any] = field(compare=False)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "CacheKey":
        """Return the key of arguments."""
        return cls(repr(arguments), arguments)


def build_empty(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Build a model on the meta device: shapes without values."""
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # layers without elements; whether the model works is checked later
        return create_model(name, **arguments)


def try_size(name: str, image_size: Size, arguments: Mapping[str, Any]) -> FeatureBackbone | None:
    """Build a model on the meta device and probe it at an image size; None where it does not fit."""
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # layers without elements, in models that are then refused
            model = timm.create_model(name, **arguments)
        patch = patch_size(model)
        if patch is not None and (image_size[0] % patch[0] or image_size[1] % patch[1]):
            return None  # timm would silently leave out the right and bottom border
        backbone = FeatureBackbone(model, image_size)
    except _REFUSALS:
        return None
    # Refuse models that enlarge their input: PiT resizes a grid of a single cell to that of its position embedding, and
    # CrossViT enlarges every image.
    stretched = min(backbone.cell_size) < reductions(model)[-1] / 2
    return None if stretched else backbone


def takes_sizes(name: str, image_sizes: Sequence[Size], arguments: Mapping[str, Any]) -> bool:
    """Whether one model, built once with these arguments, runs at all of the image sizes."""
    backbone = try_size(name, image_sizes[0], arguments)
    if backbone is None:
        return False
    try:
        with undisturbed(backbone):
            for size in image_sizes[1:]:
                backbone.forward(probe_images(backbone.model, size))
    except _REFUSALS:
        return False
    return True


def patch_size(model: nn.Module) -> Size | None:
    """Return (height, width) of a model's patches where it cuts the image into patches without overlap."""
    for embed in (getattr(model, "patch_embed", None), getattr(model, "stem", None)):
        if isinstance(embed, PatchEmbed):
            height, width = embed.patch_size  # type: ignore[misc]
            return int(height), int(width)
    return None


def reductions(model: nn.Module) -> list[int]:
    """Return how many pixels a cell of each stage is wide, from timm's feature_info."""
    info: Any = model.feature_info
    return [int(entry["reduction"]) for entry in getattr(info, "info", info)]
