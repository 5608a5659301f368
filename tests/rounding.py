"""How far rounding can move what a network answers, from the arithmetic alone and not from one processor.

A format of p significant bits rounds by at most 2^-p of a value. Which results a processor rounds, and in which order
it adds, differs between processors, and so do their numbers. To first order an answer moves by the sum, over all
rounded values, of its slope by the value times the error: at most 2^-p times the sum of |slope x value| over the
weights, the inputs and the results of all operations. Slopes and values are those of double precision.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from paucal.backbones.attention_maps import attention_layers

BITS = {torch.bfloat16: 8, torch.float16: 11}  # significant ones, the leading one included


class _Results(TorchFunctionMode):
    """Keeps what every operation gives, but for views."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in found if isinstance(found, tuple | list) else (found,):
            if isinstance(value, Tensor) and value.requires_grad and not value._is_view():
                self.kept.append(value)
        return found


def exact_and_bound(
    model: nn.Module,
    inputs: Tensor,
    kind: torch.dtype,
    answer: Callable[[nn.Module, Tensor], Tensor] = nn.Module.__call__,
) -> tuple[Tensor, Tensor]:
    """Return a network's answer in double, and how far rounding to a format can move each of its numbers.

    Args:
        model: One that computes the same every time; fused attention counts with what it computes inside.
        inputs: What the network is asked.
        kind: torch.bfloat16 or torch.float16.
        answer: Asks the network.
    """
    exact = copy.deepcopy(model).double()
    for layer in attention_layers(exact).values():
        if hasattr(layer, "fused_attn"):
            layer.fused_attn = False  # type: ignore[assignment]
    asked = inputs.double().requires_grad_()
    with _Results() as results:
        found = answer(exact, asked)
    weights = [parameter for parameter in exact.parameters() if parameter.requires_grad]
    rounded = list({id(value): value for value in (*results.kept, *weights, asked)}.values())
    bounds = []
    for number in found.flatten():
        slopes = torch.autograd.grad(number, rounded, retain_graph=True, allow_unused=True)
        pairs = [(slope, value) for slope, value in zip(slopes, rounded, strict=True) if slope is not None]
        # What is masked is -inf, with a slope of 0.
        bounds.append(sum(float((slope * value.detach()).abs().nan_to_num(0.0).sum()) for slope, value in pairs))
    return found.detach(), torch.tensor(bounds, dtype=torch.float64).view_as(found) * 2.0 ** -BITS[kind]


def require_within(found: Tensor, exact: Tensor, bound: Tensor) -> None:
    """Assert that every number of an answer is as near to the exact one as rounding allows."""
    assert found.shape == exact.shape
    assert ((found.double() - exact).abs() <= bound).all(), f"{(found.double() - exact).abs()} of {bound} at most"
