"""Candidates for constructor arguments that give a model a finer grid of features, in order of preference."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from timm.models.convnext import ConvNeXt
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import nn

from paucal.backbones.empty_models import patch_size, reductions
from paucal.backbones.layout import Size

# Numbers of cells (spatial positions) along the shorter side of the last grid. A backbone with stages needs at least 4.
# A backbone without stages (a ViT), whose cells all attend to each other from the first block on, needs at least 7, the
# number for images of 224 pixels and patches of 32 pixels. 8 cells are preferred, since more image sizes are multiples
# of 8.
MIN_STAGED_CELLS, MIN_VIT_CELLS, PREFERRED_VIT_CELLS, MAX_VIT_CELLS = 4, 7, 8, 16
_WINDOW_SIDES = (7, 8, 6, 5, 4)  # sides of Swin's attention windows in cells, in order of preference
_USUAL_IMAGE_SIDE = 224  # side in pixels of the images for which most models were designed


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

    Example:
        >>> patch_sides((96, 96))[0], patch_sides((28, 28))[0], patch_sides((31, 31))
        (12, 4, [])
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

    Example:
        >>> best_window((96, 96), 2, 4), best_window((224, 224), 4, 4)
        (6, 7)
    """

    def relative_padding(window: int) -> float:
        total = 0.0
        for stage in range(stages):
            height, width = (math.ceil(side / (patch * 2**stage)) for side in image_size)
            total += _padded_side(height, window) * _padded_side(width, window) / (height * width) - 1
        return total

    return min(_WINDOW_SIDES, key=relative_padding)


def _padded_side(side: int, window: int) -> int:
    return side if side <= window else math.ceil(side / window) * window  # timm shrinks windows larger than the grid
