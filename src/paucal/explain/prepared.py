"""Prepare a model for reading its inner tensors, and restore it afterwards."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paucal.backbones.probe import model_name
from paucal.types import UserError
from paucal.wording import counted


def plain(model: nn.Module) -> nn.Module:
    """Return a model without the wrapper of `torch.compile` and in float32: a copy if it is in half precision.

    Example:
        >>> import timm
        >>> model = timm.create_model("test_vit").half()
        >>> next(plain(model).parameters()).dtype, next(model.parameters()).dtype
        (torch.float32, torch.float16)
    """
    module = getattr(model, "_orig_mod", model)  # what `torch.compile` wraps
    floats = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return module if floats <= {torch.float32, torch.float64} else copy.deepcopy(module).float()


@contextmanager
def explainable(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a module with readable inner tensors: in evaluation mode, float32, uncompiled, without checkpointing.

    Parameters require no gradients, so that only tensors that depend on the image have one. A compiled model is run
    uncompiled, since compiled code calls no hooks. A model in half precision is replaced by a copy in float32, since
    products of small gradients vanish in float16. Afterwards the model is restored.

    Example:
        >>> import timm
        >>> model = timm.create_model("test_vit").half().train()
        >>> with explainable(model) as module:
        ...     print(next(module.parameters()).dtype, module.training)
        torch.float32 False
        >>> next(model.parameters()).dtype, model.training
        (torch.float16, True)
    """
    module = plain(model)
    training = [part for part in module.modules() if part.training]
    trainable = [p for p in module.parameters() if p.requires_grad]
    checkpointed = bool(getattr(module, "grad_checkpointing", False))
    try:
        module.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        if checkpointed:
            module.set_grad_checkpointing(False)  # type: ignore[operator]
        with torch.compiler.set_stance("force_eager"):
            yield module
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for part in training:
            part.training = True
        if checkpointed:
            module.set_grad_checkpointing(True)  # type: ignore[operator]


def run(module: nn.Module, images: Tensor) -> Tensor:
    """Return the logits (B, K) of images (B, C, H, W)."""
    require_classifier(module)
    return forward(module, images)


def require_classifier(module: nn.Module) -> None:
    """Raise a UserError for a model without a classifier, such as one from pre-training without labels."""
    if not int(getattr(module, "num_classes", 1)):
        raise UserError(f"{model_name(module)} has no classifier, so there is no class to explain: fine-tune it first.")


def forward(module: nn.Module, images: Tensor) -> Tensor:
    """Return the output of a model for images (B, C, H, W): logits, or features if it has no classifier."""
    channels = int(getattr(module, "in_chans", images.shape[1] if images.ndim == 4 else 3))
    if images.ndim != 4 or images.shape[1] != channels or not images.is_floating_point():
        raise UserError(
            f"the images are {tuple(images.shape)} {str(images.dtype).removeprefix('torch.')}, expected float "
            f"(B, {channels}, height, width), normalised: prepare them with `Preprocessing.transform`."
        )
    try:
        return module(images)
    except (RuntimeError, AssertionError, ValueError, TypeError) as problem:
        reason = str(problem).split("\n")[0].rstrip(".")
        raise UserError(
            f"{model_name(module)} does not take images of {images.shape[2]}x{images.shape[3]} pixels ({reason}): "
            "prepare them as for training."
        ) from problem


def with_gradient(module: nn.Module, images: Tensor) -> Tensor:
    """Return images in the precision of a model, as a leaf of the graph of gradients."""
    return images.detach().to(next(module.parameters()).dtype).requires_grad_()


def one_hot_classes(logits: Tensor, classes: Tensor) -> Tensor:
    """Return (B, K): 1 for the class of each image, else 0; classes as for `require_classes`."""
    indices = require_classes(classes, logits.shape[1], len(logits)).to(logits.device)
    return torch.zeros_like(logits).scatter(1, indices[:, None], 1.0)


def require_classes(classes: Tensor, count: int, images: int) -> Tensor:
    """Return class indices (B,) for B images; a single index applies to all of them."""
    indices = torch.as_tensor(classes).reshape(-1)
    if len(indices) == 1:
        indices = indices.expand(images)
    if len(indices) != images:
        classes_text = counted(len(indices), "class", "classes")
        raise UserError(f"got {classes_text} for {counted(images, 'image')}: give one, or one for each.")
    invalid = indices[(indices < 0) | (indices >= count)]
    if len(invalid):
        raise UserError(f"class {int(invalid[0])} does not exist: the model has classes 0 to {count - 1}.")
    return indices.long()
