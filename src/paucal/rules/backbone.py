"""From settings to the description of a backbone."""

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
from paucal.settings.groups import ModelSettings
from paucal.settings.options import USUAL_SIDE
from paucal.types import UserError, height_and_width


def backbone_spec(settings: ModelSettings, n_classes: int, channels: int = 3) -> tuple[BackboneSpec, list[str]]:
    """Describe the backbone, with constructor arguments that suit the image size, and return notes on the choices.

    The user's arguments take precedence over chosen ones.
    """
    size, name = height_and_width(settings.img_size), settings.model
    user_arguments = model_arguments(settings.model_args)
    sizing = fit_to_image_size(name, size, user_arguments)
    notes = [text for text in (sizing.reason, sizing.warning) if text]
    # Stored with the run, so that it can be rebuilt even if later versions choose other arguments.
    size_arguments = {key: value for key, value in sizing.arguments.items() if key != "img_size"}
    arguments = {**size_arguments, **user_arguments}
    return BackboneSpec(name, n_classes, in_chans=channels, image_size=size, arguments=arguments), notes


@dataclass(frozen=True)
class Shape:
    """Properties of a backbone that rules depend on; `grid` (rows, columns) and `dim` are those of its last map.

    Attributes:
        convolutional: Whether cells are mixed by overlapping convolutions and without attention.
        stages: Number of stages, or of blocks where there are no stages; 0 if timm knows neither.
    """

    grid: tuple[int, int]
    dim: int
    convolutional: bool
    stages: int


def backbone_shape(model: str | None, model_args: Sequence[str] | None, img_size: Sequence[int] | None) -> Shape:
    """Return the shape of the last grid and the kind of network, without running the model."""
    return _shape_of(model or "", height_and_width(img_size or USUAL_SIDE), tuple(model_args or ()))


@lru_cache(maxsize=8)
def _shape_of(name: str, size: tuple[int, int], model_args: tuple[str, ...]) -> Shape:
    user_arguments = model_arguments(model_args)
    sizing = fit_to_image_size(name, size, user_arguments)
    model = build_empty(name, {**sizing.arguments, **user_arguments})
    layers = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    overlapping = any(max(layer.kernel_size) > max(layer.stride) for layer in layers)
    width = int(model.num_features)  # type: ignore[arg-type]
    return Shape(sizing.grid, width, overlapping and not attention_layers(model), _number_of_stages(model))


def _number_of_stages(model: nn.Module) -> int:
    try:
        return count_stages(model)
    except UserError:
        return 0


def takes_sides(model: str | None, model_args: Sequence[str] | None, sides: Sequence[int]) -> bool:
    """Return whether a backbone built for the first of several image sizes runs at all of them."""
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
    """Read NAME=VALUE words; values are read as YAML, so numbers, true and [1, 2] get their types.

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
            raise UserError(f"--model-args: the value of {argument!r} cannot be read; quote it.") from None
    return arguments
