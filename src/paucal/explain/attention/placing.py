"""Find out where in the image the queries and keys of an attention layer lie.

A layer shows only (batch, heads, queries, keys). What its module and the block around it were given tells the rest: a
full attention has as many queries as its input has tokens; windows are cut as the family cuts them (`windows`).
"""

import torch
from timm.models.efficientformer_v2 import Attention2d, Attention2dDownsample
from timm.models.hiera import MaskUnitAttention
from timm.models.hieradet_sam2 import MultiScaleAttention as Sam2Attention
from timm.models.levit import AttentionDownsample
from timm.models.mvitv2 import MultiScaleAttention, MultiScaleAttentionPoolFirst
from timm.models.nest import Attention as NestAttention
from timm.models.pvt_v2 import Attention as PvtAttention
from timm.models.twins import GlobalSubSampleAttn
from timm.models.xcit import XCA
from torch import Tensor, nn

from paucal.backbones.families.cvt import ConvAttention
from paucal.backbones.families.cvt_drloc import SharedConvAttention
from paucal.backbones.families.dhvt_layers import HeadInteractedAttention
from paucal.backbones.families.vil_attention import GlobalAttention, SparseAttention
from paucal.backbones.layout import grid_sides
from paucal.explain.attention.calls import Call
from paucal.explain.attention.hiera import in_units, place_hiera
from paucal.explain.attention.maps import AttentionMap, Size, Tokens
from paucal.explain.attention.sam2 import place_sam2
from paucal.explain.attention.sparse import place_global, place_sparse
from paucal.explain.attention.unfolded import place_unfolded
from paucal.explain.attention.windows import windows_of

MOST_PREFIX = 9  # 8 registers and a class token
POOLS_QUERIES = (  # to a coarser grid
    *(MultiScaleAttention, MultiScaleAttentionPoolFirst, AttentionDownsample),
    *(Attention2d, Attention2dDownsample),
)
POOLS_CELLS = (  # squares of them, to a grid
    *(PvtAttention, GlobalSubSampleAttn, ConvAttention, SharedConvAttention),
    *POOLS_QUERIES,
)


def place(name: str, weights: Tensor, call: Call, model: nn.Module, images: Tensor) -> AttentionMap | None:
    """Return the attention with its places, or None where they cannot be told.

    Args:
        name: of the layer.
        weights: as `recorded_attention` gives them.
        call: what the layer was called with.
        model: the whole.
        images: (B, C, H, W).
    """
    if isinstance(call.layer, SparseAttention):
        return place_sparse(name, weights, call, prefix_names(model, call.layer.global_tokens))
    if isinstance(call.layer, GlobalAttention):
        return place_global(name, weights, call, prefix_names(model, weights.shape[2]))
    if isinstance(call.layer, MaskUnitAttention):
        return place_hiera(name, weights, call, model)
    if isinstance(call.layer, Sam2Attention):
        return place_sam2(name, as_groups(weights, call.layer, len(images)), call)
    found = windows_of(call)
    if found is not None:
        grouped = as_groups(weights, call.layer, len(images))
        return AttentionMap(name, grouped, Tokens(found.grid), Tokens(found.grid), found.places, found.places)
    unfolded = place_unfolded(name, weights, model, images)
    if unfolded is not None:
        return unfolded
    return _place_full(name, weights, call, model, images)


def as_groups(weights: Tensor, layer: nn.Module, batch: int) -> Tensor:
    """Return weights (or their gradients) as a layer computes them as (B, groups, heads, queries, keys).

    Args:
        weights: (B, heads, Q, K), or (B * windows, heads, Q, K), or with the windows in a dimension of their own, or
            (B * windows * heads, Q, K).
        layer: that computed them.
        batch: B.
    """
    if isinstance(layer, MaskUnitAttention):
        return in_units(weights)
    if weights.ndim == 5:
        return weights.transpose(1, 2) if isinstance(layer, NestAttention) else weights
    return _with_heads(weights, layer).unflatten(0, (batch, -1))


def _with_heads(weights: Tensor, layer: nn.Module) -> Tensor:
    """Return weights (N, heads, Q, K) of a layer that computes (N * heads, Q, K), as SAM's and SHViT's single head."""
    return weights.unflatten(0, (-1, int(getattr(layer, "num_heads", 1)))) if weights.ndim == 3 else weights  # type: ignore[arg-type]


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
    inputs, weights = call.inputs[0], _with_heads(weights, call.layer)
    if weights.ndim != 4 or len(weights) != len(images) or isinstance(call.layer, XCA):
        return None  # windows that are not known, or channels that attend to each other
    heads = _head_tokens(call.layer)
    size = (images.shape[-2], images.shape[-1])
    queries, keys = weights.shape[2], weights.shape[3]
    shown, pools = _counts(inputs), isinstance(call.layer, POOLS_QUERIES)
    if not pools and queries - heads not in shown and not (queries == 1 and keys in shown):
        return None
    if queries not in (1, keys) and not isinstance(call.layer, POOLS_CELLS):
        return None  # keys that may be pooled along rows (NextViT)
    first = int(getattr(call.layer, "has_cls_token", False)) if pools else None
    tokens = tokens_of(keys if queries == 1 and not pools else queries, model, size, heads, first)
    if tokens is None:
        return None
    key_tokens = tokens if keys == len(tokens) else tokens_of(keys, model, size, prefix=len(tokens.prefix))
    if key_tokens is None:
        return None
    places = [torch.arange(count, device=weights.device)[None] for count in (queries, keys)]
    return AttentionMap(name, as_groups(weights, call.layer, len(images)), tokens, key_tokens, places[0], places[1])


def _counts(inputs: Tensor) -> tuple[int, ...]:
    """Return how many tokens an input may hold: (B, N, C), or a map of cells with channels last or first."""
    if inputs.ndim == 3:
        return (inputs.shape[1],)
    return (inputs.shape[1] * inputs.shape[2], inputs.shape[2] * inputs.shape[3]) if inputs.ndim == 4 else ()


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
