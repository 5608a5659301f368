"""Hooks that store inputs and outputs of a model's submodules during a forward pass.

The hooks stay registered, but store tensors only while `HookedTensors.tensors` is a dictionary. The hooks are objects
instead of closures, so that a deep copy of a backbone gets copies of the hooks. They are simple enough for
torch.compile.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

# Patterns of the names of timm's block classes, and of class names that match the first pattern but are not counted as
# blocks. Class-attention blocks, for example, do not change the patch tokens.
_BLOCK_CLASS = re.compile(r"Block|Bottle\w*neck|Residual|DepthwiseSeparable|Outlooker", re.IGNORECASE)
_EXCLUDED_CLASS = re.compile(r"Class|DropBlock|Embed")
_NORM_NAME = re.compile(r"norm\d*$")  # names of modules that may be the final norm
_MERGING_CLASS = "PatchMerging"  # name of the class of patch-merging layers in all timm models
_EXCLUDED_LAYERS = re.compile(r"(^|\.)(stem|downsample|global_block)(\.|$)")  # layers whose blocks are not counted


class HookedTensors:
    """The tensors stored by the hooks of one backbone, by submodule name; None while the hooks are switched off."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] | None = None


class _OutputHook:
    def __init__(self, hooked: HookedTensors, name: str) -> None:
        self.hooked, self.name = hooked, name

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self.hooked.tensors is not None:
            self.hooked.tensors[self.name] = output


class _InputHook:
    def __init__(self, hooked: HookedTensors, name: str) -> None:
        self.hooked, self.name = hooked, name

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.hooked.tensors is not None:
            self.hooked.tensors[self.name] = inputs[0]


def hook_output(model: nn.Module, name: str, hooked: HookedTensors) -> RemovableHandle:
    """Register a hook that stores the output of the named submodule while `hooked` is switched on."""
    return model.get_submodule(name).register_forward_hook(_OutputHook(hooked, name))


def hook_input(model: nn.Module, name: str, hooked: HookedTensors) -> RemovableHandle:
    """Register a hook that stores the first input of the named submodule while `hooked` is switched on."""
    return model.get_submodule(name).register_forward_pre_hook(_InputHook(hooked, name))


@contextmanager
def recorded_outputs(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a dictionary that gets the outputs of submodules, by name, when the model runs in the `with` block."""
    hooked = HookedTensors()
    hooked.tensors = outputs = {}
    handles = [hook_output(model, name, hooked) for name in names]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def block_names(model: nn.Module) -> list[str]:
    """Return the dotted names of a model's blocks, recognised by the names of their classes, shallow to deep.

    timm does not list the blocks of a model, but their classes have similar names in all families (`Block`,
    `SwinTransformerBlock`, `Bottleneck`, `InvertedResidual`, ...). Blocks inside other blocks are not
    returned. The caller must check whether the outputs of the blocks are grids.

    Example:
        >>> import timm
        >>> len(block_names(timm.create_model("resnet18")))
        8
    """
    if hasattr(model, "unroll"):  # Hiera's blocks order tokens by window instead of row by row
        return []
    names: list[str] = []
    for name, module in model.named_modules():
        is_nested = bool(names) and name.startswith(names[-1] + ".")
        if name and not is_nested and not _EXCLUDED_LAYERS.search(name) and _is_block(module):
            names.append(name)
    return names


def _is_block(module: nn.Module) -> bool:
    class_name = type(module).__name__
    if class_name == "Transformer":  # a block in VOLO, but in PiT a stage that contains blocks
        return not any(_is_block(child) for child in module.modules() if child is not module)
    return bool(_BLOCK_CLASS.search(class_name)) and not _EXCLUDED_CLASS.search(class_name)


def merging_names(model: nn.Module) -> list[str]:
    """Return the names of the layers that merge patches between two stages, shallow to deep.

    In timm, these layers are at the beginning of a stage. In the code of Swin's authors, they are at the end of the
    previous stage. The output of these layers is the same in both cases.

    Example:
        >>> import timm
        >>> merging_names(timm.create_model("swin_tiny_patch4_window7_224"))
        ['layers.1.downsample', 'layers.2.downsample', 'layers.3.downsample']
    """
    return [name for name, module in model.named_modules() if type(module).__name__ == _MERGING_CLASS]


def final_norm_names(model: nn.Module) -> list[str]:
    """Return the names of the modules that may normalise the final grid, in the order of the model.

    These are direct children of the model with names such as `norm` and `norm4`. If such a child is a list with a norm
    per branch, the name of the last norm in the list is returned. A norm after pooling (`fc_norm`, `head.norm`) is part
    of the classifier.
    """
    names: list[str] = []
    for name, module in model.named_children():
        if not _NORM_NAME.match(name) or isinstance(module, nn.Identity):
            continue
        names.append(f"{name}.{len(module) - 1}" if isinstance(module, nn.ModuleList) else name)
    return names
