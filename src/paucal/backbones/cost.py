"""Measures a model's parameters, multiply-adds and memory on the meta device, where no values are computed."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from paucal.backbones.empty_models import build_empty, cached_by_text
from paucal.backbones.layout import Size
from paucal.backbones.probe import make_dummy_images

FLOAT_BYTES = 4  # size of a float32 in bytes


@dataclass(frozen=True)
class Cost:
    """Lower bounds of a model's cost for one image."""

    parameters: int
    macs: int  # multiply-adds of a forward pass, without the matrix products of attention
    # Size of the tensors that a float32 forward pass saves for the backward pass, without attention matrices.
    activation_bytes: int
    largest_tensor_bytes: int  # size of the largest saved tensor


@cached_by_text
def image_cost(name: str, image_size: Size, arguments: Mapping[str, Any]) -> Cost | None:
    """Return a model's cost for one image; None if the model cannot run on the meta device.

    `arguments` are all constructor arguments for this image size.

    Example:
        >>> cost = image_cost("resnet18", (224, 224), {})
        >>> round(cost.parameters / 1e6, 1), round(cost.macs / 1e9, 1), round(cost.activation_bytes / 2**20)
        (11.7, 1.8, 21)
    """
    model = build_empty(name, arguments).train()
    saved_tensors: dict[int, Tensor] = {}
    counter = FlopCounterMode(display=False)

    def keep(tensor: Tensor) -> Tensor:
        saved_tensors[_storage_address(tensor)] = tensor
        return tensor

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        images = make_dummy_images(model, image_size).repeat(2, 1, 1, 1).requires_grad_()  # batch norms need two images
        try:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), counter, MatrixFreeAttention():
                model(images)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError):
            return None
    parameter_storages = {_storage_address(parameter) for parameter in model.parameters()}
    kept_tensors = [tensor for address, tensor in saved_tensors.items() if address not in parameter_storages]
    sizes = [tensor.untyped_storage().nbytes() // 2 for tensor in kept_tensors]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    # The forward pass processed two images, and a multiply-add counts as two floating-point operations.
    return Cost(parameters, counter.get_total_flops() // 4, sum(sizes), max(sizes, default=0))


def _storage_address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class MatrixFreeAttention(TorchFunctionMode):
    """Replaces fused attention by a cheap product with the same output shape, so that no attention matrix is created.

    On CPUs and GPUs, the kernels of fused attention do not store the attention matrix. On the meta device, torch
    computes the matrix explicitly, so the measured memory would be too large.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            named = {**dict(zip(("query", "key", "value"), args, strict=False)), **(kwargs or {})}
            return named["query"][..., :1] * named["key"][..., :1, :1] * named["value"].mean(-2, keepdim=True)
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class SubmoduleCost:
    """The cost of a submodule for one image."""

    parameters: int  # number of parameters, trained or frozen
    macs: int  # multiply-adds without the matrix products of attention, as the papers' code counts them


@contextmanager
def counting_on_meta_device() -> Iterator[None]:
    """Run the `with` block on the meta device, without warnings and gradients, and restore the random states."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("meta"):
        warnings.simplefilter("ignore")
        yield


def submodule_cost(submodule: nn.Module, inputs: Any, run: Callable[[Any], Any] | None = None) -> SubmoduleCost:
    """Return the cost of a submodule on the meta device; `run`, if not None, is called instead of the submodule."""
    with FlopCounterMode(display=False) as counter, MatrixFreeAttention():
        (run or submodule)(inputs)
    return SubmoduleCost(sum(parameter.numel() for parameter in submodule.parameters()), counter.get_total_flops() // 2)
