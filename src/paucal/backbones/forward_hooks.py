"""Read a model's inner tensors during its one forward pass.

The hooks are placed once and stay; they keep tensors only while a reader has opened them. They are objects, not
closures, so that a deep copy of a backbone has its own hooks, and plain enough for torch.compile to trace.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

# Names of timm's block classes; class-attention blocks leave the cells unchanged and are not counted.
_BLOCK = re.compile(r"Block|Bottle\w*neck|Residual|DepthwiseSeparable|Outlooker", re.IGNORECASE)
_NORM = re.compile(r"norm\d*$")
_NO_BLOCK = re.compile(r"Class|DropBlock|Embed")
_MERGING = "PatchMerging"  # name of the class in Swin and in all other timm models that merge patches
_ASIDE = re.compile(r"(^|\.)(stem|downsample|global_block)(\.|$)")  # blocks within other layers


class HookedTensors:
    """The tensors that the hooks of one backbone have read, by submodule name; None while the hooks are closed."""

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
    """Keep the output of the submodule of that name while `hooked` is open."""
    return model.get_submodule(name).register_forward_hook(_OutputHook(hooked, name))


def hook_input(model: nn.Module, name: str, hooked: HookedTensors) -> RemovableHandle:
    """Keep the first input of the submodule of that name while `hooked` is open."""
    return model.get_submodule(name).register_forward_pre_hook(_InputHook(hooked, name))


@contextmanager
def recorded_outputs(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Keep the outputs of submodules by name, in calls of the model within the block."""
    hooked = HookedTensors()
    hooked.tensors = outputs = {}
    handles = [hook_output(model, name, hooked) for name in names]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def block_names(model: nn.Module) -> list[str]:
    """Return the dotted names of the modules that look like the model's blocks, shallow to deep.

    timm has no list of blocks for all families, but gives their classes similar names (`Block`, `SwinTransformerBlock`,
    `Bottleneck`, `InvertedResidual`, ...). Only the outermost such modules count; a block inside another is part of it.
    The caller has to check whether their outputs are grids.

    Example:
        >>> import timm
        >>> len(block_names(timm.create_model("resnet18")))
        8
    """
    if hasattr(model, "unroll"):  # Hiera orders the tokens inside its blocks by window, not row by row
        return []
    names: list[str] = []
    for name, module in model.named_modules():
        is_nested = bool(names) and name.startswith(names[-1] + ".")
        if name and not is_nested and not _ASIDE.search(name) and _is_block(module):
            names.append(name)
    return names


def _is_block(module: nn.Module) -> bool:
    kind = type(module).__name__
    if kind == "Transformer":  # VOLO's block, but in PiT a stage of blocks
        return not any(_is_block(part) for part in module.modules() if part is not module)
    return bool(_BLOCK.search(kind)) and not _NO_BLOCK.search(kind)


def merging_names(model: nn.Module) -> list[str]:
    """Return the names of the layers that merge patches between two stages, shallow to deep.

    timm has them at the beginning of a stage, Swin's authors at the end of the previous one; the output is the same
    tensor.

    Example:
        >>> import timm
        >>> merging_names(timm.create_model("swin_tiny_patch4_window7_224"))
        ['layers.1.downsample', 'layers.2.downsample', 'layers.3.downsample']
    """
    return [name for name, module in model.named_modules() if type(module).__name__ == _MERGING]


def final_norm_names(model: nn.Module) -> list[str]:
    """Return the names of the modules that may normalise the final grid, in the order of the model.

    These are `norm`, `norm4` and the like at the top of the model; of a list of norms, one per branch, the last one
    counts. A norm that acts after pooling (`fc_norm`, `head.norm`) is part of the classifier, not of the grid.
    """
    names: list[str] = []
    for name, module in model.named_children():
        if not _NORM.match(name) or isinstance(module, nn.Identity):
            continue
        names.append(f"{name}.{len(module) - 1}" if isinstance(module, nn.ModuleList) else name)
    return names
