"""Fit a backbone to the size of the images.

Most of timm's models are made for 224 pixels. On small images their last grid shrinks to a cell or two, which leaves a
transformer little to attend to and dense localization nothing to compare. Where a family has an argument for it (patch
size, window size, output stride), a finer grid is chosen here and the reason is given; otherwise the user is told which
sizes work. Choices are tried by building the model on the meta device, without arithmetic, so a new family needs no
entry in a table.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import nn

from paucal.backbones.candidates import EQUAL_BEST, STAGED_SIDE, arguments_to_try, has_equal_blocks, wanted_side
from paucal.backbones.empty_models import CacheKey, build_empty, patch_size, reductions, takes_sizes, try_size
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import Size
from paucal.backbones.names import require_harmless
from paucal.types import UserError

_SMALL_MODEL = "vit_mini"


@dataclass(frozen=True)
class Sizing:
    """How to build a model for images of one size.

    Attributes:
        grid: (rows, columns) of the last grid.
        arguments: Further arguments of the model's constructor, besides the user's own.
        reason: One sentence on why the model is built differently from usual, else None.
        warning: One sentence if the grid stays small, else None.
        parameters: Number of parameters of the model with these arguments and its published classifier.
    """

    grid: Size
    arguments: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    warning: str | None = None
    parameters: int = 0


def fit_to_image_size(name: str, image_size: Size, arguments: Mapping[str, Any] | None = None) -> Sizing:
    """Choose constructor arguments that give a model a useful grid at an image size.

    Args:
        name: Name of a timm model.
        image_size: (height, width) in pixels.
        arguments: The user's own constructor arguments, which are never overridden.

    Raises:
        UserError: the model does not exist, does not take the arguments or images of that size, or its grid would be a
            single cell.

    Example:
        >>> fit_to_image_size("vit_tiny_patch16_224", (32, 32)).arguments
        {'img_size': (32, 32), 'patch_size': 4}
        >>> fit_to_image_size("resnet18", (224, 224)).arguments
        {}
    """
    require_harmless(name, arguments or {})
    try:
        user_args = json.dumps(dict(arguments or {}), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise UserError(f"The arguments of {name} must be of JSON types: {error}.") from error
    return copy.deepcopy(_fitted_sizing(name, tuple(image_size), user_args))


@lru_cache(maxsize=32)
def _fitted_sizing(name: str, image_size: Size, arguments: str) -> Sizing:
    """Choose once per process, since trying takes up to a second and a run needs the result several times."""
    user_args = json.loads(arguments)
    model = _build_unfitted(name, image_size, user_args)
    if not reductions(model):
        raise UserError(f"{name} with {user_args} has no layers: give numbers of layers from 1.")
    # A model with dynamic image size works at any size. If other arguments change its patches anyway, it is better to
    # build it for this size.
    dynamic = bool(getattr(model, "dynamic_img_size", False))
    best: _Built | None = None
    for size_arguments in arguments_to_try(model, image_size, user_args):
        built = _build_at_size(name, image_size, user_args, size_arguments, dynamic and bool(size_arguments))
        if built is not None and (best is None or built.side > best.side):
            best = built
        if best is not None and best.side >= wanted_side(model):
            break
    if best is None:
        raise UserError(_size_refusal(name, model, image_size))
    grid = best.backbone.grid
    if grid == (1, 1):
        raise UserError(_single_cell_refusal(name, best.backbone.model, image_size))
    return Sizing(
        grid,
        {**best.size_argument, **best.extra},
        _size_reason(name, image_size, best) if best.extra else None,
        _coarse_grid_warning(name, best.backbone) if best.side < STAGED_SIDE else None,
        sum(parameter.numel() for parameter in best.backbone.parameters()),
    )


def _build_unfitted(name: str, image_size: Size, user_args: dict[str, Any]) -> nn.Module:
    """Build a model at its own image size, or at the wanted size if the arguments only fit that one."""
    try:
        return build_empty(name, user_args)
    except UserError as refused:
        if "img_size" in user_args:
            raise
        try:  # patches of 12 pixels do not divide the usual 224
            return build_empty(name, {**user_args, "img_size": image_size})
        except UserError:
            raise refused from None


def fit_to_image_sizes(name: str, image_sizes: Sequence[Size], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, extended where needed, that let one model run at several image sizes.

    Args:
        name: Name of a timm model.
        image_sizes: (height, width) in pixels; the model is built for the first.
        arguments: Complete constructor arguments for the first size.
    """
    for size_arguments in ({}, {"dynamic_img_size": True}):
        extended = {**arguments, **size_arguments}
        if _takes_sizes(name, tuple((height, width) for height, width in image_sizes), CacheKey.of(extended)):
            return extended
    sizes = " and ".join(_size_text(size) for size in image_sizes)
    raise UserError(
        f"{name} does not run at {sizes} pixels at once; choose a ViT, a Swin or a convnet and sizes "
        "that are multiples of its patches."
    )


@lru_cache(maxsize=32)
def _takes_sizes(name: str, image_sizes: tuple[Size, ...], key: CacheKey) -> bool:
    """Try once per process: a pre-training run needs the result for its student and its teacher."""
    return takes_sizes(name, image_sizes, key.arguments)


@dataclass(frozen=True)
class _Built:
    backbone: FeatureBackbone
    size_argument: dict[str, Any]
    extra: dict[str, Any]

    @property
    def side(self) -> int:
        return min(self.backbone.grid)


def _build_at_size(
    name: str, image_size: Size, user_args: dict[str, Any], extra: dict[str, Any], size_first: bool
) -> _Built | None:
    for size_argument in ({"img_size": image_size}, {}) if size_first else ({}, {"img_size": image_size}):
        backbone = try_size(name, image_size, {**user_args, **extra, **size_argument})
        if backbone is not None:
            return _Built(backbone, size_argument, extra)
    return None


def _size_reason(name: str, image_size: Size, built: _Built) -> str:
    settings = " and ".join(f"{key}={value}" for key, value in built.extra.items())
    grid = _size_text(built.backbone.grid)
    return f"For {_size_text(image_size)} pixels {name} is built with {settings}, which gives a last grid of {grid}."


def _coarse_grid_warning(name: str, backbone: FeatureBackbone) -> str:
    return (
        f"The last grid of {name} is {_size_text(backbone.grid)}, under 4x4: tasks on its cells (dense "
        f"localization, regions, token labels) have too few cells to learn from; {_size_advice(backbone.model)}."
    )


def _size_refusal(name: str, model: nn.Module, image_size: Size) -> str:
    if min(image_size) < reductions(model)[-1] and not has_equal_blocks(model):
        return _single_cell_refusal(name, model, image_size)
    patch = patch_size(model)
    if patch is not None and (image_size[0] % patch[0] or image_size[1] % patch[1]):
        is_too_small = has_equal_blocks(model) and min(image_size) < wanted_side(model) * max(patch)
        steps = (EQUAL_BEST, EQUAL_BEST) if is_too_small else patch
        smaller_size = [max(1, side // step) * step for side, step in zip(image_size, steps, strict=True)]
        larger_size = [-(-side // step) * step for side, step in zip(image_size, steps, strict=True)]
        return (
            f"{name} cuts images into equal patches, which is impossible for {_size_text(image_size)} "
            f"pixels; use {_size_text(smaller_size)} or {_size_text(larger_size)}."
        )
    default_size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[1:]
    return (
        f"{name} does not take images of {_size_text(image_size)} pixels; use its own {_size_text(default_size)}, or "
        f"a model that fits itself to the image, such as {_SMALL_MODEL} or swin_tiny_patch4_window7_224."
    )


def _single_cell_refusal(name: str, model: nn.Module, image_size: Size) -> str:
    return f"{name} sees {_size_text(image_size)} pixels as a single cell; {_size_advice(model)}."


def _size_advice(model: nn.Module) -> str:
    return f"use --img-size {STAGED_SIDE * reductions(model)[-1]} or more, or --model {_SMALL_MODEL}"


def _size_text(size: Sequence[int]) -> str:
    return f"{size[0]}x{size[1]}"
