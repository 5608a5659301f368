"""Attention written out, for modes that look at every operation: a fused kernel is one operation without a rule."""

import math
from typing import Any

from torch import Tensor


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **others: Any,
) -> Tensor:
    """Return what `scaled_dot_product_attention` does, in single operations; dropout is left out.

    Raises:
        ValueError: the attention is causal, or shares keys among heads, which no backbone of images does.
    """
    if is_causal or others.get("enable_gqa"):
        raise ValueError("causal attention and shared keys are not written out")
    weights = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else float(scale))) @ key.transpose(-2, -1)
    if attn_mask is not None:
        hidden = attn_mask.dtype == attn_mask.new_empty(0).bool().dtype
        weights = weights.masked_fill(~attn_mask, float("-inf")) if hidden else weights + attn_mask
    return weights.softmax(-1) @ value
