"""The rules by which relevance passes one operation backwards, as the backward passes of autograd functions.

Source: Chefer et al. 2021, "Transformer Interpretability Beyond Attention Visualization", section 3, as its program and
LV-ViT's have them (alpha = 1). `R` stands for the relevance of an output; each rule gives the relevance of the inputs,
with the same sum, where the original does.

Here autograd carries relevance in the place of gradients, so that operations which only move values (views, indices,
concatenation) need no rule, and a tensor that is used twice adds up. Parameters are no inputs: where one of two
summands or factors is a parameter, the other takes all.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-9


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient, with 1e-9 added to the denominator, and 0 where that was 0.

    Example:
        >>> safe_divide(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]))
        tensor([0.5000, 0.0000])
    """
    return numerator / (denominator + torch.where(denominator == -TINY, 2 * TINY, TINY)) * (denominator != 0)


def _positive_part(x: Tensor, weight: Tensor, relevance: Tensor, apply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Share relevance among inputs by their positive products with the weights (alpha = 1, bias ignored)."""
    with torch.enable_grad():
        positive = x.detach().clamp(min=0).requires_grad_()
        negative = x.detach().clamp(max=0).requires_grad_()
        activation = apply(positive, weight.clamp(min=0)) + apply(negative, weight.clamp(max=0))
        shares = torch.autograd.grad(activation, (positive, negative), safe_divide(relevance, activation.detach()))
    return positive.detach() * shares[0] + negative.detach() * shares[1]


class Linear(torch.autograd.Function):
    """The alpha-beta rule with alpha = 1: only positive contributions to an output share its relevance."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return F.linear."""
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *relevance: Tensor) -> Any:
        """Return the relevance of x."""
        x, weight = ctx.saved_tensors
        return _positive_part(x, weight, relevance[0], F.linear), None, None


class Convolution(torch.autograd.Function):
    """The same rule for convolutions.

    The original divides positive and negative inputs' contributions by sums of their own, so that negative inputs
    double the relevance; here they share one sum as in linear layers, and the relevance is conserved.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: tuple[Any, ...]) -> Tensor:
        """Return torch.conv2d; `options` are stride, padding, dilation and groups."""
        ctx.save_for_backward(x, weight)
        ctx.options = options
        return torch.conv2d(x, weight, bias, *options)

    @staticmethod
    def backward(ctx: Any, *relevance: Tensor) -> Any:
        """Return the relevance of x."""
        x, weight = ctx.saved_tensors

        def apply(inputs: Tensor, weights: Tensor) -> Tensor:
            return torch.conv2d(inputs, weights, None, *ctx.options)

        return _positive_part(x, weight, relevance[0], apply), None, None, None


class Unchanged(torch.autograd.Function):
    """Relevance passes as it is: norms, activations, soft-max, dropout, constant factors and constant summands."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor) -> Tensor:
        """Return `value`, what the operation makes of x, of the same shape."""
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *relevance: Tensor) -> Any:
        """Return the relevance of x."""
        return relevance[0], None


class Product(torch.autograd.Function):
    """The z-rule for a product of two tensors (matrix or elementwise), each of which takes half."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, apply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return apply(first, second)."""
        ctx.save_for_backward(first, second)
        ctx.apply_to = apply
        return apply(first, second)

    @staticmethod
    def backward(ctx: Any, *relevance: Tensor) -> Any:
        """Return the relevance of both factors."""
        with torch.enable_grad():
            factors = [factor.detach().requires_grad_() for factor in ctx.saved_tensors]
            product = ctx.apply_to(*factors)
            shares = torch.autograd.grad(product, factors, safe_divide(relevance[0], product.detach()))
        halves = [factor.detach() * share / 2 for factor, share in zip(factors, shares, strict=True)]
        return halves[0], halves[1], None


class Mean(torch.autograd.Function):
    """The z-rule for a mean or a sum: each summand takes its share of the total."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, apply: Callable[[Tensor], Tensor]) -> Tensor:
        """Return apply(x), linear in x."""
        ctx.save_for_backward(x)
        ctx.apply_to = apply
        return apply(x)

    @staticmethod
    def backward(ctx: Any, *relevance: Tensor) -> Any:
        """Return the relevance of x."""
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            mean = ctx.apply_to(x)
            share = torch.autograd.grad(mean, x, safe_divide(relevance[0], mean.detach()))[0]
        return x.detach() * share, None


class Sum(torch.autograd.Function):
    """The rule for shortcuts: the z-rule for both summands, then each image's relevance is kept as it was in total.

    The summands take parts of the total in proportion to the absolute value of what the z-rule gives them.
    """

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        """Return first + second, which may broadcast."""
        ctx.save_for_backward(first, second)
        return first + second

    @staticmethod
    def backward(ctx: Any, *relevance: Tensor) -> Any:
        """Return the relevance of both summands."""
        first, second = ctx.saved_tensors
        share = safe_divide(relevance[0], first + second)
        parts = [summand * share for summand in (first, second)]
        sums = [_per_image(part.sum(tuple(range(1, part.ndim))), part) for part in parts]
        total = _per_image(relevance[0].sum(tuple(range(1, relevance[0].ndim))), relevance[0])
        whole = sums[0].abs() + sums[1].abs()
        kept = [
            part * safe_divide(safe_divide(own.abs(), whole) * total, own)
            for part, own in zip(parts, sums, strict=True)
        ]
        return kept[0].sum_to_size(first.shape), kept[1].sum_to_size(second.shape)


def _per_image(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1))
