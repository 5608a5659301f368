"""Propagation of relevance through an unmodified model: autograd computes relevance instead of gradients.

While `RelevanceMode` is active, each torch function that a model calls is replaced by the rule for this function. So
models need no second version of their layers, unlike in the authors' code.

The rules are those of Chefer et al. 2021, "Transformer Interpretability Beyond Attention Visualization", section 3, as
implemented in the authors' code and in LV-ViT's code (alpha = 1). Each rule is the backward pass of an autograd
function. This backward pass computes the relevance of the inputs from the relevance of the output, and conserves the
sum of relevance if the published rule conserves the sum. Operations that only move values (views, indexing,
concatenation) need no rule. If a tensor is used twice, its relevances are summed. Parameters get no relevance. If one
of two summands or factors is a parameter, the other operand gets all of the relevance.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

EPSILON = 1e-9  # value that `safe_divide` adds to denominators


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return numerator / (denominator + 1e-9), and 0 where the denominator is 0.

    Example:
        >>> safe_divide(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]))
        tensor([0.5000, 0.0000])
    """
    return numerator / (denominator + torch.where(denominator == -EPSILON, 2 * EPSILON, EPSILON)) * (denominator != 0)


class LayerRule(torch.autograd.Function):
    """The alpha-beta rule with alpha = 1 for linear layers and convolutions: only positive contributions get relevance.

    For convolutions, the authors' code divides the contributions of positive and of negative inputs by separate sums,
    which doubles the relevance if there are negative inputs. Here, as in linear layers, a common sum conserves the
    relevance.
    """

    @staticmethod
    def forward(ctx: Any, apply: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return apply(x, weight, bias)."""
        ctx.save_for_backward(x, weight)
        ctx.apply_to = apply
        return apply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *relevance: Tensor) -> Any:
        """Return the relevance of x, in proportion to its positive products with the weights; ignore the bias."""
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            inputs = [x.detach().clamp(min=0).requires_grad_(), x.detach().clamp(max=0).requires_grad_()]
            weights = weight.clamp(min=0), weight.clamp(max=0)
            activation = ctx.apply_to(inputs[0], weights[0], None) + ctx.apply_to(inputs[1], weights[1], None)
            shares = torch.autograd.grad(activation, inputs, safe_divide(relevance[0], activation.detach()))
        return None, inputs[0].detach() * shares[0] + inputs[1].detach() * shares[1], None, None


class PassThroughRule(torch.autograd.Function):
    """Pass relevance unchanged through norms, activations, softmax, dropout, and constant factors and summands."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor) -> Tensor:
        """Return `value`, the result of the operation on x, which has the shape of x."""
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *relevance: Tensor) -> Any:
        """Return the relevance of x."""
        return relevance[0], None


class ZRule(torch.autograd.Function):
    """The z-rule for a mean or a sum of one tensor, or for a product of two: relevance in proportion to contributions.

    Each element gets relevance in proportion to its contribution to an output. In a product, each of the two
    factors gets half of the relevance.
    """

    @staticmethod
    def forward(ctx: Any, apply: Callable[..., Tensor], *factors: Tensor) -> Tensor:
        """Return apply(*factors); `apply` must be linear in each factor."""
        ctx.save_for_backward(*factors)
        ctx.apply_to = apply
        return apply(*factors)

    @staticmethod
    def backward(ctx: Any, *relevance: Tensor) -> Any:
        """Return the relevance of each factor."""
        with torch.enable_grad():
            factors = [factor.detach().requires_grad_() for factor in ctx.saved_tensors]
            output = ctx.apply_to(*factors)
            shares = torch.autograd.grad(output, factors, safe_divide(relevance[0], output.detach()))
        pairs = zip(factors, shares, strict=True)
        return None, *(factor.detach() * share / len(factors) for factor, share in pairs)


class Sum(torch.autograd.Function):
    """The rule for residual connections: the z-rule, scaled to conserve the total relevance of each image.

    The total is divided between the two summands in proportion to the absolute values of their relevances by the
    z-rule.
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
        quotient = safe_divide(relevance[0], first + second)
        by_z_rule = [summand * quotient for summand in (first, second)]
        image_sums = [_add_trailing_dims(values.sum(tuple(range(1, values.ndim))), values) for values in by_z_rule]
        total = _add_trailing_dims(relevance[0].sum(tuple(range(1, relevance[0].ndim))), relevance[0])
        absolute_sum = image_sums[0].abs() + image_sums[1].abs()
        scaled = [
            values * safe_divide(safe_divide(image_sum.abs(), absolute_sum) * total, image_sum)
            for values, image_sum in zip(by_z_rule, image_sums, strict=True)
        ]
        return scaled[0].sum_to_size(first.shape), scaled[1].sum_to_size(second.shape)


def _add_trailing_dims(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1))


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
    """Compute `scaled_dot_product_attention` with separate operations, without dropout."""
    if is_causal or others.get("enable_gqa"):
        raise ValueError("causal attention and grouped-query attention are not supported")
    weights = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else float(scale))) @ key.transpose(-2, -1)
    if attn_mask is not None:
        is_boolean = attn_mask.dtype == torch.bool
        weights = weights.masked_fill(~attn_mask, float("-inf")) if is_boolean else weights + attn_mask
    return weights.softmax(-1) @ value


_UNCHANGED = {
    *("layer_norm", "batch_norm", "group_norm", "rms_norm", "softmax", "dropout", "gelu", "relu", "relu_", "silu"),
    *("tanh", "sigmoid", "hardtanh", "hardtanh_", "relu6", "hardswish", "elu", "leaky_relu"),
    *("div", "__truediv__", "true_divide"),
}
PRODUCTS = {"mul", "mul_", "__mul__", "__imul__", "__rmul__"}
MATRIX_PRODUCTS = {"matmul", "__matmul__", "bmm"}


class RelevanceMode(TorchFunctionMode):
    """Mode in which backward passes compute relevance by the rules of Chefer et al. 2021 instead of gradients.

    Only tensors that require gradients get relevance, so the parameters must be frozen. Functions without a rule keep
    their usual gradient, which is correct for functions that only move values.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if func.__name__ == "scaled_dot_product_attention":
            with self:
                return explicit_attention(*args, **keywords)
        rule = _RULES.get(func.__name__)
        if rule is None or not any(gets_relevance(value) for value in (*args, *keywords.values())):
            return func(*args, **keywords)
        return rule(func, args, keywords)


def gets_relevance(value: Any) -> bool:
    """Return whether a value is a tensor that gets relevance, since it requires a gradient."""
    return isinstance(value, Tensor) and value.requires_grad


def _unchanged_rule(func: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        value = func(args[0].clone(), *args[1:], **keywords)
    return PassThroughRule.apply(args[0], value)  # type: ignore[return-value]


def _linear_rule(func: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    bias = args[2] if len(args) > 2 else keywords.get("bias")
    return LayerRule.apply(F.linear, args[0], args[1], bias)  # type: ignore[return-value]


def _convolution_rule(func: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    defaults = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    arguments = dict(zip(("input", "weight", *defaults), args, strict=False)) | keywords
    x, weight, bias, *options = ({**defaults, **arguments}[name] for name in ("input", "weight", *defaults))

    def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.conv2d(x, weight, bias, *options)

    return LayerRule.apply(convolve, x, weight, bias)  # type: ignore[return-value]


def _sum_rule(func: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    first, second = args[0], args[1]
    if "alpha" in keywords:
        alpha = keywords["alpha"]
        second = PassThroughRule.apply(second, second.detach() * alpha) if gets_relevance(second) else second * alpha
    if gets_relevance(first) and gets_relevance(second):
        return Sum.apply(first, second)  # type: ignore[return-value]
    return _single_operand_rule(torch.add, first, second)


def _product_rule(func: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    first, second = args[0], args[1]
    is_matrix_product = func.__name__ in MATRIX_PRODUCTS
    if gets_relevance(first) and gets_relevance(second):
        # As in the authors' code, queries are scaled after their product with the keys. This matters if the product is
        # so small that the 1e-9 added in `safe_divide` is noticeable.
        unscaled, factor = getattr(first, "unscaled", (first, None)) if is_matrix_product else (first, None)
        product = ZRule.apply(torch.matmul if is_matrix_product else torch.mul, unscaled, second)
        return product if factor is None else PassThroughRule.apply(product, product.detach() * factor)  # type: ignore
    if is_matrix_product:
        return func(*args, **keywords)
    scaled = _single_operand_rule(torch.mul, first, second)
    if gets_relevance(first) and isinstance(second, float):
        scaled.unscaled = (first, second)  # type: ignore[attr-defined]
    return scaled


def _mean_rule(func: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    return ZRule.apply(lambda x: func(x, *args[1:], **keywords), args[0])  # type: ignore[return-value]


def _single_operand_rule(apply: Callable[[Any, Any], Tensor], first: Any, second: Any) -> Tensor:
    """Give all relevance to the operand that requires a gradient, since the other operand is constant."""
    operand = first if gets_relevance(first) else second
    with torch.no_grad():
        value = apply(first, second)
    if value.shape != operand.shape:  # broadcast explicitly, so that the backward pass of `expand` sums the relevance
        operand = operand.expand(value.shape)
    return PassThroughRule.apply(operand, value)  # type: ignore[return-value]


_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_UNCHANGED, _unchanged_rule),
    **dict.fromkeys(("add", "add_", "__add__", "__iadd__", "__radd__"), _sum_rule),
    **dict.fromkeys(PRODUCTS | MATRIX_PRODUCTS, _product_rule),
    **dict.fromkeys(("mean", "sum", "avg_pool2d", "adaptive_avg_pool2d"), _mean_rule),
    "linear": _linear_rule,
    "conv2d": _convolution_rule,
}
