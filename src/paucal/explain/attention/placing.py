"""Find out where in the image the queries and keys of an attention layer lie.

A layer shows only (batch, heads, queries, keys). What its module and the block around it were given tells the rest: a
full attention has as many queries as its input has tokens; windows are cut as the family cuts them, from a map of
indices instead of features.
"""

from typing import Any, NamedTuple

import torch
from timm.models.swin_transformer import SwinTransformerBlock, window_partition
from torch import Tensor, nn
from torch.nn import functional

from paucal.backbones.families.common.windows import lay_out
from paucal.backbones.families.cvt.windows import WindowAttention, partition, window_of
from paucal.backbones.families.dhvt.layers import HeadInteractedAttention
from paucal.backbones.families.swin.layers import PaddedSwinBlock
from paucal.backbones.layout import grid_sides
from paucal.explain.attention.maps import AttentionMap, Size, Tokens

MOST_PREFIX = 9  # 8 registers and a class token


class Call(NamedTuple):
    """What a layer and the block around it were called with.

    Attributes:
        layer: the attention layer.
        block: the module that holds it.
        inputs: positional arguments of the layer.
        block_inputs: positional arguments of the block.
    """

    layer: nn.Module
    block: nn.Module
    inputs: tuple[Any, ...]
    block_inputs: tuple[Any, ...]


def place(name: str, weights: Tensor, call: Call, model: nn.Module, images: Tensor) -> AttentionMap | None:
    """Return the attention with its places, or None where they cannot be told.

    Args:
        name: of the layer.
        weights: as `recorded_attention` gives them.
        call: what the layer was called with.
        model: the whole.
        images: (B, C, H, W).
    """
    if isinstance(call.block, SwinTransformerBlock):
        return _place_swin(name, weights, call, len(images))
    if isinstance(call.layer, WindowAttention):
        return _place_cvt(name, weights, call, len(images))
    return _place_full(name, weights, call, model, images)


def prefix_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Return names for the tokens before the cells, as far as the model tells what they are.

    Example:
        >>> import timm
        >>> prefix_names(timm.create_model("deit_tiny_distilled_patch16_224", depth=1), 2)
        ('class', 'distillation')
    """
    # In models of stages (CvT, ViL) the token belongs to a stage.
    known = [
        word
        for word, attribute in (("class", "cls_token"), ("distillation", "dist_token"))
        if any(getattr(part, attribute, None) is not None for part in model.modules())
    ]
    other = "register" if getattr(model, "reg_token", None) is not None else "token"
    names = [*known, *(f"{other} {number}" for number in range(1, count + 1))]
    return tuple(names[:count])


def _place_full(name: str, weights: Tensor, call: Call, model: nn.Module, images: Tensor) -> AttentionMap | None:
    inputs = call.inputs[0]
    if weights.ndim != 4 or len(weights) != len(images):
        return None
    heads = _head_tokens(call.layer)
    shown = inputs.shape[1] if inputs.ndim == 3 else inputs[0, ..., 0].numel()
    size = (images.shape[-2], images.shape[-1])
    queries, keys = weights.shape[2], weights.shape[3]
    if shown + heads != queries and not (queries == 1 and shown == keys):
        return None  # channels attend to each other (XCiT), or single windows
    tokens = tokens_of(keys if queries == 1 else queries, model, size, heads)
    if tokens is None:
        return None
    key_tokens = tokens if keys == len(tokens) else tokens_of(keys, model, size, prefix=len(tokens.prefix))
    if key_tokens is None:
        return None
    places = [torch.arange(count, device=weights.device)[None] for count in (queries, keys)]
    return AttentionMap(name, weights[:, None], tokens, key_tokens, places[0], places[1])


def tokens_of(
    count: int, model: nn.Module, image_size: Size, heads: int = 0, prefix: int | None = None
) -> Tokens | None:
    """Return what that many tokens of a model are, or None where they are no grid of the image.

    Args:
        count: all tokens.
        model: tells how many stand before the cells.
        image_size: (height, width) in pixels.
        heads: how many stand behind the cells.
        prefix: how many stand before the cells, where it is known.
    """
    said = int(getattr(model, "num_prefix_tokens", 0) or 0)
    for before in (said, *range(MOST_PREFIX)) if prefix is None else (prefix,):
        sides = grid_sides(count - heads - before, image_size)
        if sides is not None:
            suffix = tuple(f"head {number}" for number in range(1, heads + 1))
            return Tokens(sides, prefix_names(model, before), suffix)
    return None


def _head_tokens(layer: nn.Module) -> int:
    return layer.num_heads if isinstance(layer, HeadInteractedAttention) and layer.head_tokens else 0


def _place_swin(name: str, weights: Tensor, call: Call, batch: int) -> AttentionMap:
    block: Any = call.block
    size = (call.block_inputs[0].shape[1], call.block_inputs[0].shape[2])
    index = _indices(size, weights.device)
    if isinstance(block, PaddedSwinBlock):
        windows = block.windows(size)
        laid, window = lay_out(index + 1, windows) - 1, windows.window
    else:
        (rows, columns), (down, right) = block.window_size, block.shift_size
        shifted = index.roll((-down, -right), (1, 2))  # timm shifts before it pads
        fill = (0, 0, 0, -size[1] % columns, 0, -size[0] % rows)
        laid, window = functional.pad(shifted, fill, value=-1), (rows, columns)
    return _windowed(name, weights, batch, Tokens(size), window_partition(laid, window))


def _place_cvt(name: str, weights: Tensor, call: Call, batch: int) -> AttentionMap:
    layer: Any = call.layer
    size = call.inputs[1]
    window = window_of(size, layer.window_size[0], layer.padding)
    fill = (0, 0, 0, -size[1] % window[1], 0, -size[0] % window[0])
    laid = functional.pad(_indices(size, weights.device), fill, value=-1)
    return _windowed(name, weights, batch, Tokens(size), partition(laid, window))


def _windowed(name: str, weights: Tensor, batch: int, tokens: Tokens, windows: Tensor) -> AttentionMap:
    places = windows.reshape(-1, weights.shape[-1])
    return AttentionMap(name, weights.unflatten(0, (batch, len(places))), tokens, tokens, places, places)


def _indices(size: Size, device: torch.device) -> Tensor:
    """Return the index of every cell as a map (1, H, W, 1)."""
    return torch.arange(size[0] * size[1], device=device).view(1, *size, 1)
