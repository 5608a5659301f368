"""Let autograd carry relevance instead of gradients through a model that knows nothing of it.

While the mode is on, every torch function that a model calls is looked up by its name and replaced by a rule. So timm's
models and ours need no second version of their layers, as the published programs have.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paucal.explain.attribution.explicit import explicit_attention
from paucal.explain.attribution.rules import Convolution, Linear, Mean, Product, Sum, Unchanged

_UNCHANGED = {
    *("layer_norm", "batch_norm", "group_norm", "rms_norm", "softmax", "dropout", "gelu", "relu", "relu_", "silu"),
    *("tanh", "sigmoid", "hardtanh", "hardtanh_", "relu6", "hardswish", "elu", "leaky_relu"),
}
_SUMS = {"add", "add_", "__add__", "__iadd__", "__radd__"}
_PRODUCTS = {"mul", "mul_", "__mul__", "__imul__", "__rmul__"}
_QUOTIENTS = {"div", "__truediv__", "true_divide"}
_MATRIX = {"matmul", "__matmul__", "bmm"}
_MEANS = {"mean", "sum", "avg_pool2d", "adaptive_avg_pool2d"}


class RelevanceMode(TorchFunctionMode):
    """While it is on, `backward` gives relevance by the rules of Chefer et al. 2021, for what is computed under it.

    Only tensors that require gradients carry relevance; freeze the parameters. Functions without a rule keep their
    gradient, which is right for those that move values.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func.__name__ == "scaled_dot_product_attention":
            with self:
                return explicit_attention(*args, **named)
        rule = _rule(func.__name__)
        if rule is None or not any(carries(value) for value in (*args, *named.values())):
            return func(*args, **named)
        return rule(func, args, named)


def carries(value: Any) -> bool:
    """Tell whether a value carries relevance."""
    return isinstance(value, Tensor) and value.requires_grad


def _rule(name: str) -> Callable[..., Any] | None:
    if name in _UNCHANGED or name in _QUOTIENTS:
        return _unchanged
    for names, rule in ((_SUMS, _sum), (_PRODUCTS, _product), (_MATRIX, _product), (_MEANS, _mean)):
        if name in names:
            return rule
    return {"linear": _linear, "conv2d": _convolution}.get(name)


def _unchanged(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        value = func(args[0].clone(), *args[1:], **named)
    return Unchanged.apply(args[0], value)  # type: ignore[return-value]


def _linear(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    bias = args[2] if len(args) > 2 else named.get("bias")
    return Linear.apply(args[0], args[1], bias)  # type: ignore[return-value]


def _convolution(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    defaults = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    given = dict(zip(("input", "weight", *defaults), args, strict=False)) | named
    options = tuple({**defaults, **given}[name] for name in ("stride", "padding", "dilation", "groups"))
    return Convolution.apply(given["input"], given["weight"], given.get("bias"), options)  # type: ignore[return-value]


def _sum(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    first, second = args[0], args[1]
    if "alpha" in named:
        second = (
            Unchanged.apply(second, second.detach() * named["alpha"]) if carries(second) else (second * named["alpha"])
        )
    if carries(first) and carries(second):
        return Sum.apply(first, second)  # type: ignore[return-value]
    return _keep_one(torch.add, first, second)


def _product(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    first, second = args[0], args[1]
    matrix = func.__name__ in _MATRIX
    if carries(first) and carries(second):
        # The scale of the queries comes after their product with the keys in the published programs, which matters
        # where that is so small that the 1e-9 of its division counts.
        plain, factor = getattr(first, "unscaled", (first, None)) if matrix else (first, None)
        product = Product.apply(plain, second, torch.matmul if matrix else torch.mul)
        return product if factor is None else Unchanged.apply(product, product.detach() * factor)  # type: ignore
    if matrix:
        return func(*args, **named)
    scaled = _keep_one(torch.mul, first, second)
    if carries(first) and isinstance(second, float):
        scaled.unscaled = (first, second)  # type: ignore[attr-defined]
    return scaled


def _mean(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    return Mean.apply(args[0], lambda x: func(x, *args[1:], **named))  # type: ignore[return-value]


def _keep_one(apply: Callable[[Any, Any], Tensor], first: Any, second: Any) -> Tensor:
    """Give all relevance to the one of two operands that carries any."""
    carrying = first if carries(first) else second
    with torch.no_grad():
        value = apply(first, second)
    if value.shape != carrying.shape:  # broadcast: the gradient of an expansion adds up
        carrying = carrying.expand(value.shape)
    return Unchanged.apply(carrying, value)  # type: ignore[return-value]
