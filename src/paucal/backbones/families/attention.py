"""Scaled dot-product attention on two paths with equal outputs: a fused kernel, and explicit weights.

Every attention layer of ours follows timm's convention, so that what reads timm's attention reads ours: an
attribute `fused_attn`, and on the explicit path the weights pass through the submodule `attn_drop`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

# Measured in float32 on two CPU cores (`benchmarks/backbones.py` holds the whole layers): below this many weights
# per head the explicit path is the faster one, above it the fused one, up to 3 times.
CPU_FUSED_FROM = 64 * 64


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, fused: bool, drop: nn.Dropout
) -> Tensor:
    """Return softmax(scale * query key^T + bias) value, with dropout on the weights in training.

    Args:
        query: (..., N, d).
        key: (..., M, d).
        value: (..., M, e).
        bias: added to the logits, of a shape that broadcasts to (..., N, M), -inf where a key is hidden; or None.
        scale: of the products.
        fused: whether the fused kernel may be used; it is where it is the faster one.
        drop: dropout of the weights, which sees them on the explicit path.

    Returns:
        (..., N, e).
    """
    if fused and is_fused_faster(query, key, bias):
        dropout = drop.p if drop.training else 0.0
        bias = bias if bias is None else bias.to(query.dtype)
        return functional.scaled_dot_product_attention(query, key, value, bias, dropout, scale=scale)
    weights = (query * scale) @ key.transpose(-2, -1)
    weights = (weights if bias is None else weights + bias).softmax(-1)
    return drop(weights).to(value.dtype) @ value


def is_fused_faster(query: Tensor, key: Tensor, bias: Tensor | None) -> bool:
    """Tell whether the fused kernel is the faster path for these shapes on this device.

    On a CPU it falls back to a slow path where the bias needs a gradient, and does not pay for few tokens.
    """
    if query.device.type != "cpu":
        return True
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        return False
    return query.shape[-2] * key.shape[-2] >= CPU_FUSED_FROM


def split_heads(tokens: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split the (B, N, parts * C) output of a joint projection into `parts` tensors of (B, heads, N, C / heads)."""
    batch, count, width = tokens.shape
    return tokens.reshape(batch, count, parts, heads, width // (parts * heads)).permute(2, 0, 3, 1, 4).unbind(0)


def join_heads(tokens: Tensor) -> Tensor:
    """Return (B, heads, N, d) as (B, N, heads * d)."""
    return tokens.transpose(1, 2).flatten(2)
