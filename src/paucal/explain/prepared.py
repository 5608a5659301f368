"""Functions that prepare a model for reading its intermediate tensors, and that run the prepared model."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paucal.backbones.probe import model_name
from paucal.types import UserError
from paucal.wording import counted


def to_full_precision(model: nn.Module) -> nn.Module:
    """Return the uncompiled model if its precision is float32 or float64, otherwise a float32 copy of the model."""
    module = getattr(model, "_orig_mod", model)  # `torch.compile` stores the uncompiled model as `_orig_mod`
    floats = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return module if floats <= {torch.float32, torch.float64} else copy.deepcopy(module).float()


@contextmanager
def prepare_for_hooks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the model prepared for hooks: uncompiled, in evaluation mode, in float32, without gradient checkpointing.

    Only tensors that depend on the image require gradients; parameters do not. A compiled model is run uncompiled,
    since compiled code does not call hooks. A model in half precision is replaced by a copy in float32, since products
    of small gradients underflow in float16. Afterwards the state of the model is restored.

    Example:
        >>> import timm
        >>> model = timm.create_model("test_vit").half().train()
        >>> with prepare_for_hooks(model) as module:
        ...     print(next(module.parameters()).dtype, module.training)
        torch.float32 False
        >>> next(model.parameters()).dtype, model.training
        (torch.float16, True)
    """
    module = to_full_precision(model)
    in_training_mode = [submodule for submodule in module.modules() if submodule.training]
    trainable = [p for p in module.parameters() if p.requires_grad]
    uses_checkpointing = bool(getattr(module, "grad_checkpointing", False))
    try:
        module.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        if uses_checkpointing:
            module.set_grad_checkpointing(False)  # type: ignore[operator]
        with torch.compiler.set_stance("force_eager"):
            yield module
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for submodule in in_training_mode:
            submodule.training = True
        if uses_checkpointing:
            module.set_grad_checkpointing(True)  # type: ignore[operator]


def compute_logits(module: nn.Module, images: Tensor) -> Tensor:
    """Return the (B, K) logits of (B, C, H, W) images."""
    require_classifier(module)
    return forward(module, images)


def require_classifier(module: nn.Module) -> None:
    """Raise a UserError if a model has no classifier, for example after pre-training without labels."""
    if not int(getattr(module, "num_classes", 1)):
        raise UserError(f"{model_name(module)} has no classifier, so it has no classes to explain: fine-tune it first.")


def forward(module: nn.Module, images: Tensor) -> Tensor:
    """Return the output of a model for (B, C, H, W) images: logits, or features if the model has no classifier."""
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
            f"{model_name(module)} does not support images of {images.shape[2]}x{images.shape[3]} pixels ({reason}): "
            "prepare them as for training."
        ) from problem


def with_gradient(module: nn.Module, images: Tensor) -> Tensor:
    """Return a copy of images that requires a gradient and has the dtype of the model's parameters."""
    return images.detach().to(next(module.parameters()).dtype).requires_grad_()


def one_hot_classes(logits: Tensor, classes: Tensor) -> Tensor:
    """Return (B, K) one-hot vectors of the images' classes; `classes` has (B,) indices or a single index."""
    indices = check_class_indices(classes, logits.shape[1], len(logits)).to(logits.device)
    return torch.zeros_like(logits).scatter(1, indices[:, None], 1.0)


def check_class_indices(classes: Tensor, n_classes: int, n_images: int) -> Tensor:
    """Check class indices, one for each image or a single one for all images, and return one for each image, (B,)."""
    indices = torch.as_tensor(classes).reshape(-1)
    if len(indices) == 1:
        indices = indices.expand(n_images)
    if len(indices) != n_images:
        classes_text = counted(len(indices), "class", "classes")
        raise UserError(f"got {classes_text} for {counted(n_images, 'image')}: give one class, or one class per image.")
    invalid = indices[(indices < 0) | (indices >= n_classes)]
    if len(invalid):
        raise UserError(f"class {int(invalid[0])} does not exist: the model has classes 0 to {n_classes - 1}.")
    return indices.long()
