"""Adapts a backbone to the size of the images.

Most of timm's models were designed for images of 224 pixels. For small images, the last grid of these models has only
one or two cells (spatial positions) per side, which is too coarse for attention and for dense localization. If the
model family has a suitable constructor argument (patch size, window size, output stride), this module chooses a finer
grid and gives the user the reason; otherwise, an error message says which image sizes are possible. Candidates are
tried by building the model on the meta device, which computes no values, so no table of model families is needed.
"""

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from timm.models.convnext import ConvNeXt
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import nn

from paucal.backbones.empty_models import build_empty, patch_size, reductions, supports_sizes, try_size
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import Size
from paucal.backbones.names import require_harmless_arguments
from paucal.types import UserError

# Numbers of cells (spatial positions) along the shorter side of the last grid. A backbone with stages needs at least 4.
# A backbone without stages (a ViT), whose cells all attend to each other from the first block on, needs at least 7, the
# number for images of 224 pixels and patches of 32 pixels. 8 cells are preferred, since more image sizes are multiples
# of 8.
MIN_STAGED_CELLS, MIN_VIT_CELLS, PREFERRED_VIT_CELLS, MAX_VIT_CELLS = 4, 7, 8, 16
_WINDOW_SIDES = (7, 8, 6, 5, 4)  # sides of Swin's attention windows in cells, in order of preference
_USUAL_IMAGE_SIDE = 224  # side in pixels of the images for which most models were designed
_SMALL_MODEL = "vit_mini"  # recommended for small images


def min_cells(model: nn.Module) -> int:
    """Return the smallest recommended number of cells along the shorter side of a model's last grid."""
    return MIN_VIT_CELLS if has_single_grid(model) else MIN_STAGED_CELLS


def has_single_grid(model: nn.Module) -> bool:
    """Return whether all blocks of a model have the same grid (as in a ViT); False if the grid differs by stage."""
    return len(set(reductions(model))) == 1


def candidate_arguments(model: nn.Module, image_size: Size, user_args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield constructor arguments that change a model's grid, without overriding the user's arguments."""
    if isinstance(model, SwinTransformer | SwinTransformerV2) and min(image_size) < _USUAL_IMAGE_SIDE:
        yield from _swin_arguments(model, image_size, user_args)
        return
    yield {}
    if has_single_grid(model):
        if "patch_size" not in user_args and min(image_size) < MIN_VIT_CELLS * reductions(model)[0]:
            yield from ({"patch_size": side} for side in patch_sides(image_size))
        return
    strides = () if "output_stride" in user_args else (16, 8)
    yield from ({"output_stride": stride} for stride in strides[:1])
    if isinstance(model, ConvNeXt) and "patch_size" not in user_args:
        yield {"patch_size": 1}  # not 2, since timm's first stage would then halve the grid again
    yield from ({"output_stride": stride} for stride in strides[1:])


def patch_sides(image_size: Size) -> list[int]:
    """Return the sides of square patches, in pixels, that give 7 to 16 cells along an image's shorter side.

    The side that gives 8 cells comes first, then the other sides from large to small.
    """
    side = min(image_size)
    common = math.gcd(*image_size)
    sides = [p for p in range(1, common + 1) if common % p == 0 and MIN_VIT_CELLS <= side // p <= MAX_VIT_CELLS]
    return sorted(sides, key=lambda p: (side // p != PREFERRED_VIT_CELLS, -p))


def _swin_arguments(model: nn.Module, image_size: Size, user_args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    sizes = [getattr(module, "window_size", (0,)) for module in model.modules()]
    default_patch = max(patch_size(model) or (4,))
    default_window = max(max(size) for size in sizes if isinstance(size, tuple))
    stages = len(reductions(model))
    for patch in [default_patch] if "patch_size" in user_args else [p for p in (4, 2, 1) if p <= default_patch]:
        swin_arguments = {} if patch == default_patch else {"patch_size": patch}
        window = best_window(image_size, patch, stages)
        if "window_size" not in user_args and window != default_window:
            swin_arguments["window_size"] = window
        yield swin_arguments


def best_window(image_size: Size, patch: int, stages: int) -> int:
    """Return the side of the attention window, in cells, for which the grids of a Swin need the least padding.

    The padding of each stage is measured relative to the stage's number of cells, and the results are added. In a tie,
    the first of 7 (Swin's default), 8, 6, 5 and 4 is chosen.
    """

    def relative_padding(window: int) -> float:
        total = 0.0
        for stage in range(stages):
            sides = [math.ceil(side / (patch * 2**stage)) for side in image_size]
            # timm shrinks windows that are larger than the grid.
            padded = [side if side <= window else math.ceil(side / window) * window for side in sides]
            total += math.prod(padded) / math.prod(sides) - 1
        return total

    return min(_WINDOW_SIDES, key=relative_padding)


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
    best, size_argument, grid_arguments = None, {}, {}
    for candidate in candidate_arguments(model, image_size, user_args):
        prefer_img_size = is_dynamic and bool(candidate)
        backbone, argument = _build_at_size(name, image_size, {**user_args, **candidate}, prefer_img_size)
        if backbone is not None and (best is None or min(backbone.grid) > min(best.grid)):
            best, size_argument, grid_arguments = backbone, argument, candidate
        if best is not None and min(best.grid) >= min_cells(model):
            break
    if best is None:
        raise UserError(_size_error_message(name, model, image_size))
    if best.grid == (1, 1):
        raise UserError(_single_cell_message(name, best.model, image_size))
    reason = warning = None
    if grid_arguments:
        settings = " and ".join(f"{key}={value}" for key, value in grid_arguments.items())
        reason = (
            f"For {_size_text(image_size)} pixels {name} is built with {settings}, which gives a last grid of "
            f"{_size_text(best.grid)}."
        )
    if min(best.grid) < MIN_STAGED_CELLS:
        warning = (
            f"The last grid of {name} is {_size_text(best.grid)}, smaller than 4x4, which is too few cells for losses "
            f"on cells (dense localization, regions, token labels); {_size_advice(best.model)}."
        )
    parameters = sum(parameter.numel() for parameter in best.parameters())
    return Sizing(best.grid, {**size_argument, **grid_arguments}, reason, warning, parameters)


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
    """Return constructor arguments with which one model runs at several image sizes, (height, width) in pixels.

    The result is `arguments`, which fit the first size, and `dynamic_img_size` if the other sizes need it.
    """
    for size_arguments in ({}, {"dynamic_img_size": True}):
        extended = {**arguments, **size_arguments}
        if supports_sizes(name, [(height, width) for height, width in image_sizes], extended):
            return extended
    sizes = " and ".join(_size_text(size) for size in image_sizes)
    raise UserError(
        f"{name} does not run at all of the sizes {sizes} pixels; choose a ViT, a Swin or a convnet, and sizes that "
        "are multiples of its patches."
    )


def _build_at_size(
    name: str, image_size: Size, arguments: dict[str, Any], prefer_img_size: bool
) -> tuple[FeatureBackbone | None, dict[str, Any]]:
    """Build a model with or without `img_size`, whichever works; `prefer_img_size` decides which is tried first.

    Return the model on the meta device, or None, and the argument `img_size` if it was needed.
    """
    for size_argument in ({"img_size": image_size}, {}) if prefer_img_size else ({}, {"img_size": image_size}):
        backbone = try_size(name, image_size, {**arguments, **size_argument})
        if backbone is not None:
            return backbone, size_argument
    return None, {}


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
