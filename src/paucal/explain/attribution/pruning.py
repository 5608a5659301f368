"""LibraGrad's pruning and scaling of gradients, for any model.

Mehri et al. 2025, "LibraGrad: Balancing Gradient Flow for Universally Better Vision Transformer Attributions" (CVPR,
arXiv 2411.16760). Gradient times input sums to the output only if an operation is linear in the inputs that receive a
gradient. Therefore no gradient flows through the divisor of a norm. (Gradients flow through the mean.) GELU and similar
functions are x times a gate that depends on x; no gradient flows through the gate. In a product of two tensors, either
each factor gets half of its gradient, or attention weights get no gradient. The values of the forward pass do not
change. The implementation follows the paper and does not use the authors' code.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paucal.explain.attribution.relevance_mode import MATRIX_PRODUCTS, PRODUCTS, explicit_attention, gets_relevance

Products = Literal["halved", "values"]
_GATED = {"gelu", "silu", "hardswish", "mish"}  # torch functions that multiply x by a gate that depends on x
# Arguments of torch's norms, by function.
_NORM_ARGUMENTS = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias"),
    "group_norm": ("input", "num_groups", "weight", "bias"),
    "rms_norm": ("input", "normalized_shape", "weight"),
}
NEAR_ZERO = 1e-6  # inputs of a gated function whose absolute value is below this count as 0


class PrunedGradients(TorchFunctionMode):
    """Mode in which torch functions return their usual values, but backward passes compute LibraGrad's gradients.

    Args:
        products: "halved" halves the gradients of both factors of a product; "values" stops the gradient at the
            softmax, so that attention weights are constants.

    Example:
        >>> x = torch.tensor([[1.0, 2.0, 4.0]], requires_grad=True)
        >>> with PrunedGradients():
        ...     y = torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (3,)))
        >>> total = (torch.autograd.grad(y.sum(), x)[0] * x).sum()
        >>> torch.testing.assert_close(total, y.sum())
    """

    def __init__(self, products: Products = "halved") -> None:
        super().__init__()
        self.products: Products = products

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords, name = kwargs or {}, func.__name__
        if not args or not gets_relevance(args[0]):
            return func(*args, **keywords)
        if name == "scaled_dot_product_attention":
            with self:
                return explicit_attention(*args, **keywords)
        if name == "softmax" and self.products == "values":
            return func(*args, **keywords).detach()
        if name in _GATED:
            constant = args[0].detach()
            is_zero = constant.abs() < NEAR_ZERO
            value = func(constant.clone(), *args[1:], **keywords)
            return args[0] * torch.where(is_zero, 0.5, value / torch.where(is_zero, 1.0, constant))
        if name in _NORM_ARGUMENTS:
            return _rescale(func, name, args, keywords)
        if name in MATRIX_PRODUCTS | PRODUCTS and len(args) > 1 and gets_relevance(args[1]):
            multiply = torch.matmul if name in MATRIX_PRODUCTS else torch.mul
            return (multiply(args[0], args[1].detach()) + multiply(args[0].detach(), args[1])) / 2
        return func(*args, **keywords)


def _rescale(func: Callable[..., Any], name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
    """Return the normalised x with the gradient of (x - mean) times a constant."""
    x = args[0]
    with torch.no_grad():
        value = func(*args, **keywords)
    arguments = {**dict(zip(_NORM_ARGUMENTS[name], args, strict=False)), **keywords}
    bias = arguments.get("bias")
    if name == "group_norm":
        grouped = x.unflatten(1, (arguments["num_groups"], -1))
        centred = (grouped - grouped.mean(tuple(range(2, grouped.ndim)), keepdim=True)).flatten(1, 2)
        bias = None if bias is None else bias.view(1, -1, *[1] * (x.ndim - 2))
    elif name == "layer_norm":
        centred = x - x.mean(tuple(range(-len(tuple(arguments["normalized_shape"])), 0)), keepdim=True)
    else:  # rms_norm, which has no bias
        centred = x
    with torch.no_grad():
        is_zero = centred.abs() < 1e-12
        unbiased = value if bias is None else value - bias
        scale = torch.where(is_zero, 0.0, unbiased / torch.where(is_zero, 1.0, centred))
    out = centred * scale
    return out + (value - out).detach()
