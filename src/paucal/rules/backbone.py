"""The spec and the properties of the backbone that settings describe."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import nn

from paucal.backbones.attention_maps import attention_layers
from paucal.backbones.empty_models import build_empty
from paucal.backbones.layers import count_stages
from paucal.backbones.sizing import fit_to_image_size, fit_to_image_sizes
from paucal.backbones.spec import BackboneSpec
from paucal.reading import parse_yaml
from paucal.settings.options import DEFAULT_SIDE
from paucal.settings.shared import ModelSettings
from paucal.types import UserError, height_and_width


def backbone_spec(settings: ModelSettings, n_classes: int, channels: int = 3) -> tuple[BackboneSpec, list[str]]:
    """Return the spec of the backbone, with constructor arguments that suit the image size, and notes for the user.

    The user's `model_args` take precedence over the arguments that suit the image size.
    """
    size, name = height_and_width(settings.img_size), settings.model
    user_arguments = model_arguments(settings.model_args)
    sizing = fit_to_image_size(name, size, user_arguments)
    notes = [text for text in (sizing.reason, sizing.warning) if text]
    # The spec that is stored with the run includes the chosen arguments, since later versions may choose differently.
    size_arguments = {key: value for key, value in sizing.arguments.items() if key != "img_size"}
    arguments = {**size_arguments, **user_arguments}
    return BackboneSpec(name, n_classes, in_chans=channels, image_size=size, arguments=arguments), notes


@dataclass(frozen=True)
class BackboneShape:
    """Properties of a backbone that rules depend on.

    Attributes:
        grid: Size of the last feature map as (rows, columns).
        dim: Number of channels of the last feature map.
        convolutional: Whether the network has overlapping convolutions and no attention.
        stages: Number of stages, or number of blocks if there are no stages; 0 if both are unknown.
    """

    grid: tuple[int, int]
    dim: int
    convolutional: bool
    stages: int


def backbone_shape(
    model: str | None, model_args: Sequence[str] | None, img_size: Sequence[int] | None
) -> BackboneShape:
    """Return the properties of a backbone without computing a forward pass."""
    return _backbone_shape(model or "", height_and_width(img_size or DEFAULT_SIDE), tuple(model_args or ()))


@lru_cache(maxsize=256)
def _backbone_shape(name: str, size: tuple[int, int], model_args: tuple[str, ...]) -> BackboneShape:
    user_arguments = model_arguments(model_args)
    sizing = fit_to_image_size(name, size, user_arguments)
    model = build_empty(name, {**sizing.arguments, **user_arguments})
    layers = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    has_overlap = any(max(layer.kernel_size) > max(layer.stride) for layer in layers)
    channels = int(model.num_features)  # type: ignore[arg-type]
    return BackboneShape(sizing.grid, channels, has_overlap and not attention_layers(model), _number_of_stages(model))


def _number_of_stages(model: nn.Module) -> int:
    try:
        return count_stages(model)
    except UserError:
        return 0


def supports_sides(model: str | None, model_args: Sequence[str] | None, sides: Sequence[int]) -> bool:
    """Return whether a backbone that is built for the first of several image sides accepts images of all sides."""
    name, sizes = model or "", [(side, side) for side in sides]
    user_arguments = model_arguments(model_args)
    try:
        fit_to_image_sizes(
            name, sizes, {**fit_to_image_size(name, sizes[0], user_arguments).arguments, **user_arguments}
        )
    except UserError:
        return False
    return True


def model_arguments(words: Sequence[str] | None) -> dict[str, Any]:
    """Parse NAME=VALUE words; values are parsed as YAML, so `4`, `true` and `[1, 2]` become an int, a bool and a list.

    Example:
        >>> model_arguments(["patch_size=2", "depths=[2, 2]", "qkv_bias=false"])
        {'patch_size': 2, 'depths': [2, 2], 'qkv_bias': False}
    """
    arguments = {}
    for argument in words or ():
        name, equals, value = argument.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--model-args: {argument!r} is not of the form NAME=VALUE, for instance patch_size=4.")
        try:
            arguments[name] = parse_yaml(value)
        except ValueError:
            raise UserError(f"--model-args: the value of {argument!r} is not valid YAML; quote the value.") from None
    return arguments
