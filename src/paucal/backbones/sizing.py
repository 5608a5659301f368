"""Adapts a backbone to the size of the images.

Most of timm's models were designed for images of 224 pixels. For small images, the last grid of these models has only
one or two cells (spatial positions) per side, which is too coarse for attention and for dense localization. If the
model family has a suitable constructor argument (patch size, window size, output stride), this module chooses a finer
grid and gives the user the reason; otherwise, an error message says which image sizes are possible. Candidates are
tried by building the model on the meta device, which computes no values, so no table of model families is needed.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import nn

from paucal.backbones.candidates import (
    MIN_STAGED_CELLS,
    PREFERRED_VIT_CELLS,
    candidate_arguments,
    has_single_grid,
    min_cells,
)
from paucal.backbones.empty_models import CacheKey, build_empty, patch_size, reductions, supports_sizes, try_size
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import Size
from paucal.backbones.names import require_harmless_arguments
from paucal.types import UserError

_SMALL_MODEL = "vit_mini"  # recommended for small images


@dataclass(frozen=True)
class Sizing:
    """How to build a model for images of one size.

    Attributes:
        grid: (rows, columns) of the last grid.
        arguments: Arguments of the model's constructor, in addition to the user's arguments.
        reason: Sentence that tells the user how the grid was made finer; None if the model keeps its default grid.
        warning: Sentence that warns the user that the grid is still coarse; None if the grid is fine enough.
        parameters: Number of parameters of the model with these arguments and with its default classifier.
    """

    grid: Size
    arguments: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    warning: str | None = None
    parameters: int = 0


def fit_to_image_size(name: str, image_size: Size, arguments: Mapping[str, Any] | None = None) -> Sizing:
    """Choose constructor arguments with which a model has a large enough grid for an image size.

    Args:
        name: Name of a timm model.
        image_size: (height, width) in pixels.
        arguments: The user's constructor arguments, which are never overridden.

    Raises:
        UserError: the model does not exist or does not support the arguments or the image size, or the grid would have
            a single cell.

    Example:
        >>> fit_to_image_size("vit_tiny_patch16_224", (32, 32)).arguments
        {'img_size': (32, 32), 'patch_size': 4}
        >>> fit_to_image_size("resnet18", (224, 224)).arguments
        {}
    """
    require_harmless_arguments(name, arguments or {})
    try:
        user_args = json.dumps(dict(arguments or {}), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise UserError(f"The arguments of {name} must be of JSON types: {error}.") from error
    return copy.deepcopy(_choose_sizing(name, tuple(image_size), user_args))


@lru_cache(maxsize=256)
def _choose_sizing(name: str, image_size: Size, arguments: str) -> Sizing:
    """Choose the arguments; cached, since this takes up to a second and a run needs the result several times."""
    user_args = json.loads(arguments)
    model = _build_at_default_size(name, image_size, user_args)
    if not reductions(model):
        raise UserError(f"{name} with {user_args} has no layers: use at least 1 layer.")
    # A model with `dynamic_img_size` works at any size. But if other arguments change the patches, so that the model
    # cannot have its usual position embedding, build the model for this size.
    is_dynamic = bool(getattr(model, "dynamic_img_size", False))
    best: _SizedModel | None = None
    for grid_arguments in candidate_arguments(model, image_size, user_args):
        sized = _build_at_size(name, image_size, user_args, grid_arguments, is_dynamic and bool(grid_arguments))
        if sized is not None and (best is None or sized.side > best.side):
            best = sized
        if best is not None and best.side >= min_cells(model):
            break
    if best is None:
        raise UserError(_size_error_message(name, model, image_size))
    grid = best.backbone.grid
    if grid == (1, 1):
        raise UserError(_single_cell_message(name, best.backbone.model, image_size))
    return Sizing(
        grid,
        {**best.size_argument, **best.grid_arguments},
        _size_reason(name, image_size, best) if best.grid_arguments else None,
        _coarse_grid_warning(name, best.backbone) if best.side < MIN_STAGED_CELLS else None,
        sum(parameter.numel() for parameter in best.backbone.parameters()),
    )


def _build_at_default_size(name: str, image_size: Size, user_args: dict[str, Any]) -> nn.Module:
    """Build a model with its default image size or, if the arguments do not allow this, with `image_size`."""
    try:
        return build_empty(name, user_args)
    except UserError as default_size_error:
        if "img_size" in user_args:
            raise
        try:  # needed, for example, for patches of 12 pixels, which do not divide 224
            return build_empty(name, {**user_args, "img_size": image_size})
        except UserError:
            raise default_size_error from None


def fit_to_image_sizes(name: str, image_sizes: Sequence[Size], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return constructor arguments with which one model runs at several image sizes.

    Args:
        name: Name of a timm model.
        image_sizes: (height, width) in pixels of each size; the model is built for the first size.
        arguments: All constructor arguments for the first size, to which further arguments are added if needed.
    """
    for size_arguments in ({}, {"dynamic_img_size": True}):
        extended = {**arguments, **size_arguments}
        if _supports_sizes(
            name, tuple((height, width) for height, width in image_sizes), CacheKey.from_arguments(extended)
        ):
            return extended
    sizes = " and ".join(_size_text(size) for size in image_sizes)
    raise UserError(
        f"{name} does not run at all of the sizes {sizes} pixels; choose a ViT, a Swin or a convnet, and sizes that "
        "are multiples of its patches."
    )


@lru_cache(maxsize=256)
def _supports_sizes(name: str, image_sizes: tuple[Size, ...], key: CacheKey) -> bool:
    """Return whether a model runs at all of these sizes; cached, since a run needs this for student and teacher."""
    return supports_sizes(name, image_sizes, key.arguments)


@dataclass(frozen=True)
class _SizedModel:
    """A model built for an image size, with the constructor arguments that were added to the user's.

    Attributes:
        backbone: The model, on the meta device.
        size_argument: The argument `img_size`; empty if the model does not need this argument.
        grid_arguments: Arguments that make the grid finer; empty if none are needed.
    """

    backbone: FeatureBackbone
    size_argument: dict[str, Any]
    grid_arguments: dict[str, Any]

    @property
    def side(self) -> int:
        """Number of cells along the shorter side of the last grid."""
        return min(self.backbone.grid)


def _build_at_size(
    name: str, image_size: Size, user_args: dict[str, Any], grid_arguments: dict[str, Any], prefer_img_size: bool
) -> _SizedModel | None:
    """Build a model with or without `img_size`, whichever works; `prefer_img_size` decides which is tried first."""
    for size_argument in ({"img_size": image_size}, {}) if prefer_img_size else ({}, {"img_size": image_size}):
        backbone = try_size(name, image_size, {**user_args, **grid_arguments, **size_argument})
        if backbone is not None:
            return _SizedModel(backbone, size_argument, grid_arguments)
    return None


def _size_reason(name: str, image_size: Size, sized: _SizedModel) -> str:
    settings = " and ".join(f"{key}={value}" for key, value in sized.grid_arguments.items())
    grid = _size_text(sized.backbone.grid)
    return f"For {_size_text(image_size)} pixels {name} is built with {settings}, which gives a last grid of {grid}."


def _coarse_grid_warning(name: str, backbone: FeatureBackbone) -> str:
    return (
        f"The last grid of {name} is {_size_text(backbone.grid)}, smaller than 4x4, which is too few cells for losses "
        f"on cells (dense localization, regions, token labels); {_size_advice(backbone.model)}."
    )


def _size_error_message(name: str, model: nn.Module, image_size: Size) -> str:
    if min(image_size) < reductions(model)[-1] and not has_single_grid(model):
        return _single_cell_message(name, model, image_size)
    patch = patch_size(model)
    if patch is not None and (image_size[0] % patch[0] or image_size[1] % patch[1]):
        is_too_small = has_single_grid(model) and min(image_size) < min_cells(model) * max(patch)
        steps = (PREFERRED_VIT_CELLS, PREFERRED_VIT_CELLS) if is_too_small else patch
        smaller_size = [max(1, side // step) * step for side, step in zip(image_size, steps, strict=True)]
        larger_size = [-(-side // step) * step for side, step in zip(image_size, steps, strict=True)]
        return (
            f"{name} divides images into equal patches, which is impossible for {_size_text(image_size)} pixels; use "
            f"{_size_text(smaller_size)} or {_size_text(larger_size)}."
        )
    default_size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[1:]
    return (
        f"{name} does not support images of {_size_text(image_size)} pixels; use its default size "
        f"{_size_text(default_size)}, or a model for any size, such as {_SMALL_MODEL} or swin_tiny_patch4_window7_224."
    )


def _single_cell_message(name: str, model: nn.Module, image_size: Size) -> str:
    return f"for {_size_text(image_size)} pixels the last grid of {name} is a single cell; {_size_advice(model)}."


def _size_advice(model: nn.Module) -> str:
    return f"use --img-size {MIN_STAGED_CELLS * reductions(model)[-1]} or more, or --model {_SMALL_MODEL}"


def _size_text(size: Sequence[int]) -> str:
    return f"{size[0]}x{size[1]}"
