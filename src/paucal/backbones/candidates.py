"""Constructor arguments that make a model's grid finer, the best first."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from timm.models.convnext import ConvNeXt
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import nn

from paucal.backbones.empty_models import patch_size, reductions
from paucal.backbones.layout import Size

# A backbone with stages needs 4x4 cells at its end. A backbone of equal blocks, whose cells all attend to each other
# from the first block on, needs 7x7, the grid of 224 pixels with patches of 32; 8x8 is preferred since it divides more
# image sizes.
STAGED_SIDE, EQUAL_SIDE, EQUAL_BEST, EQUAL_MAX = 4, 7, 8, 16
_WINDOWS = (7, 8, 6, 5, 4)
_USUAL_SIDE = 224


def wanted_side(model: nn.Module) -> int:
    """Return how many cells the shorter side of a model's last grid should have at least."""
    return EQUAL_SIDE if has_equal_blocks(model) else STAGED_SIDE


def has_equal_blocks(model: nn.Module) -> bool:
    """Whether all blocks work on the grid of the patches (ViT and its kin)."""
    return len(set(reductions(model))) == 1


def arguments_to_try(model: nn.Module, image_size: Size, user_args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield constructor arguments that change a model's grid, without overriding the user's."""
    if isinstance(model, SwinTransformer | SwinTransformerV2) and min(image_size) < _USUAL_SIDE:
        yield from _swin_arguments(model, image_size, user_args)
        return
    yield {}
    if has_equal_blocks(model):
        if "patch_size" not in user_args and min(image_size) < EQUAL_SIDE * reductions(model)[0]:
            yield from ({"patch_size": side} for side in equal_patches(image_size))
        return
    strides = () if "output_stride" in user_args else (16, 8)
    yield from ({"output_stride": stride} for stride in strides[:1])
    if isinstance(model, ConvNeXt) and "patch_size" not in user_args:
        yield {"patch_size": 1}  # with 2, timm's first stage halves the grid again
    yield from ({"output_stride": stride} for stride in strides[1:])


def equal_patches(image_size: Size) -> list[int]:
    """Return the patch sides that cut an image into 7 to 16 cells along its shorter side, 8 first.

    Example:
        >>> equal_patches((96, 96))[0], equal_patches((28, 28))[0], equal_patches((31, 31))
        (12, 4, [])
    """
    side = min(image_size)
    common = math.gcd(*image_size)
    sides = [p for p in range(1, common + 1) if common % p == 0 and EQUAL_SIDE <= side // p <= EQUAL_MAX]
    return sorted(sides, key=lambda p: (side // p != EQUAL_BEST, -p))


def _swin_arguments(model: nn.Module, image_size: Size, user_args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    sizes = [getattr(module, "window_size", (0,)) for module in model.modules()]
    own_patch, own_window = max(patch_size(model) or (4,)), max(max(size) for size in sizes if isinstance(size, tuple))
    stages = len(reductions(model))
    for patch in [own_patch] if "patch_size" in user_args else [p for p in (4, 2, 1) if p <= own_patch]:
        swin_arguments = {} if patch == own_patch else {"patch_size": patch}
        window = best_window(image_size, patch, stages)
        if "window_size" not in user_args and window != own_window:
            swin_arguments["window_size"] = window
        yield swin_arguments


def best_window(image_size: Size, patch: int, stages: int) -> int:
    """Return the attention window that pads the grids of a Swin least.

    Padding is a stage's share of padded cells, summed over the stages. Ties go to the first of 7 (Swin's own), 8, 6, 5
    and 4.

    Example:
        >>> best_window((96, 96), 2, 4), best_window((224, 224), 4, 4)
        (6, 7)
    """

    def padding(window: int) -> float:
        total = 0.0
        for stage in range(stages):
            height, width = (math.ceil(side / (patch * 2**stage)) for side in image_size)
            total += _padded_side(height, window) * _padded_side(width, window) / (height * width) - 1
        return total

    return min(_WINDOWS, key=padding)


def _padded_side(side: int, window: int) -> int:
    return side if side <= window else math.ceil(side / window) * window  # timm shrinks a window to the grid
