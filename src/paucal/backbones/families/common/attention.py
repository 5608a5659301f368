"""Scaled dot-product attention, computed either by a fused kernel or with explicit attention weights.

paucal's attention layers follow timm's convention, so that tools for timm's attention also work with paucal's layers:
they have an attribute `fused_attn`, and explicit weights pass through the submodule `attn_drop`.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

T = TypeVar("T")


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, fused: bool, drop: nn.Dropout
) -> Tensor:
    """Return softmax(scale * query key^T + bias) value, with dropout on the weights in training.

    Queries are (..., N, d), keys (..., M, d) and values (..., M, e). The bias broadcasts to (..., N, M) and is -inf for
    keys that a query must not attend to. With `fused`, the fused kernel is used if it is faster; otherwise, the weights
    pass through `drop`.
    """
    if fused and is_fused_faster(query, bias):
        dropout = drop.p if drop.training else 0.0
        bias = bias if bias is None else bias.to(query.dtype)
        return functional.scaled_dot_product_attention(query, key, value, bias, dropout, scale=scale)
    weights = (query * scale) @ key.transpose(-2, -1)
    weights = weights if bias is None else add_bias(weights, bias)
    return drop(weights.softmax(-1)).to(value.dtype) @ value


def cached_on_device(compute: Callable[..., T]) -> Callable[..., T]:
    """Cache the tensors that a function computes from sizes and, as the last argument, a device.

    The returned function takes any tensor on the device instead of the device. All models of the process share the
    results for the most recent sizes. Results for compiled code or for another type of tensor are not cached, since
    they cannot be used elsewhere.
    """
    # Tensors made in inference mode could not be used in training.
    cached = lru_cache(maxsize=64)(torch.inference_mode(False)(compute))

    @wraps(compute)
    def cached_or_new(*arguments: Any) -> T:
        *sizes, like = arguments
        can_cache = not torch.compiler.is_compiling() and type(like) in (Tensor, nn.Parameter)
        return (cached if can_cache else compute)(*sizes, like.device)

    cached_or_new.cache = cached  # type: ignore[attr-defined]
    return cached_or_new


def add_bias(weights: Tensor, bias: Tensor) -> Tensor:
    """Return weights + bias; the sum is computed in place if the dtypes are equal.

    The weights are the largest tensor of a layer, and on a CPU a second tensor takes more time than the addition.
    """
    return weights.add_(bias) if bias.dtype == weights.dtype else weights + bias


def is_fused_faster(query: Tensor, bias: Tensor | None) -> bool:
    """Return whether the fused kernel is faster than explicit weights on the query's device.

    On a CPU, the fused kernel is slow if the bias needs a gradient. Otherwise, in float32 with 4 to 64 queries, the
    fused kernel is 0.84 to 2.6 times as fast as explicit weights in evaluation, and 1.3 to 3.9 times in training.
    """
    return query.device.type != "cpu" or bias is None or not (bias.requires_grad and torch.is_grad_enabled())


def split_heads(tokens: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split the (B, N, parts * C) output of a linear layer such as `qkv` into (B, heads, N, C / heads) tensors."""
    batch, count, width = tokens.shape
    return tokens.reshape(batch, count, parts, heads, width // (parts * heads)).permute(2, 0, 3, 1, 4).unbind(0)


def join_heads(tokens: Tensor) -> Tensor:
    """Concatenate the heads of (B, heads, N, d) tokens; return (B, N, heads * d)."""
    return tokens.transpose(1, 2).flatten(2)
