"""Finds out, with one forward pass, how to get grids of features from a timm model; hooks that store the features.

The hooks stay registered, but store tensors only while `HookedTensors.tensors` is a dictionary. The hooks are objects
instead of closures, so that a deep copy of a backbone gets copies of the hooks. They are simple enough for
torch.compile.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from paucal.backbones.layout import LayoutHints, Size, last_tensor, to_grid
from paucal.types import UserError

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


class TensorHook:
    """Stores a module's output if registered as a forward hook, its first input if registered as a forward pre-hook."""

    def __init__(self, hooked: HookedTensors, name: str) -> None:
        self.hooked, self.name = hooked, name

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], *output: Any) -> None:
        """Store the tensor if the hooks are switched on."""
        if self.hooked.tensors is not None:
            self.hooked.tensors[self.name] = output[0] if output else inputs[0]


def hook_output(model: nn.Module, name: str, hooked: HookedTensors) -> RemovableHandle:
    """Register a hook that stores the output of the named submodule while `hooked` is switched on."""
    return model.get_submodule(name).register_forward_hook(TensorHook(hooked, name))


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


@dataclass(frozen=True)
class FeaturePlan:
    """How to get a model's features, as determined by a forward pass."""

    final_is_grid: bool  # whether `forward_features` outputs a grid; if not, the deepest intermediate map is used
    norm: str | None  # name of the final norm, whose input is the last grid before normalisation; None for no norm
    blocks: tuple[str, ...]  # names of the blocks whose outputs are grids, shallow to deep
    merging_layers: tuple[str, ...]  # names of the layers that merge patches, shallow to deep
    prefixes: tuple[int, ...]  # possible numbers of leading tokens that are not cells, the most likely first
    channels_last: bool  # whether the model states that its maps are (B, H, W, C)
    class_token: bool  # whether the pooled features are the class token, which is the first token
    last_shape: tuple[int, int, int]  # (channels, rows, columns) of the last grid in this forward pass


def make_feature_plan(model: nn.Module, images: Tensor, hooked: HookedTensors) -> FeaturePlan:
    """Run the model on images, and return its plan; register hooks that store the needed tensors in `hooked`."""
    size = (images.shape[-2], images.shape[-1])
    handles = {name: hook_output(model, name, hooked) for name in (*block_names(model), *merging_names(model))}
    for name in final_norm_names(model):
        handles[name] = model.get_submodule(name).register_forward_pre_hook(TensorHook(hooked, name))
    prefixes, channels_last = prefixes_and_channels_last(model)
    hooked.tensors = {}
    try:
        final, tensors = model.forward_features(images), hooked.tensors  # type: ignore[operator]
    finally:
        hooked.tensors = None
    last = to_grid(final, size, final_prefixes(prefixes), LayoutHints(channels_last))
    final_is_grid = last is not None
    if last is None:
        last = _deepest_map(model, images)
    hints = LayoutHints(channels_last, (last.shape[2], last.shape[3]))
    grids = {name: to_grid(output, size, prefixes, hints) for name, output in tensors.items()}
    shapes = {name: grid.shape for name, grid in grids.items() if grid is not None}
    norms = [name for name in final_norm_names(model) if final_is_grid and shapes.get(name) == last.shape]
    # Blocks whose outputs have fewer cells than the last grid process class tokens only.
    blocks = [n for n in block_names(model) if n in shapes and shapes[n][2:].numel() >= last.shape[2:].numel()]
    merging = [name for name in merging_names(model) if name in shapes]
    for name, handle in handles.items():
        if name not in (*norms[-1:], *blocks, *merging):
            handle.remove()
    pooled_by_mean = str(getattr(model, "global_pool", "")).startswith("avg")
    class_token = prefixes[0] > 0 and _has_class_token(model) and not pooled_by_mean and last_tensor(final).ndim == 3
    return FeaturePlan(
        final_is_grid,
        norms[-1] if norms else None,
        tuple(blocks),
        tuple(merging),
        prefixes,
        channels_last,
        class_token,
        (last.shape[1], last.shape[2], last.shape[3]),
    )


def final_prefixes(prefixes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the possible numbers of leading tokens of the final output, from which no class token is dropped.

    If 0 were possible, an output with only a class token would be mistaken for a grid with one cell.
    """
    return prefixes[:1] if prefixes[0] else prefixes


def _deepest_map(model: nn.Module, images: Tensor) -> Tensor:
    advice = "choose a model with one, such as a ViT, a Swin or a ConvNeXt"
    if not hasattr(model, "forward_intermediates"):
        raise UserError(f"{model_name(model)} has no spatial grid; {advice}.")
    maps = model.forward_intermediates(images)[1]  # type: ignore[operator]
    if not maps or maps[-1].ndim != 4:
        raise UserError(f"{model_name(model)} has no spatial grid in its last layer; {advice}.")
    return maps[-1]


def prefixes_and_channels_last(model: nn.Module) -> tuple[tuple[int, ...], bool]:
    """Return the possible numbers of leading tokens of a model's outputs, and whether its maps are (B, H, W, C)."""
    count = getattr(model, "num_prefix_tokens", None)
    if count is None:
        count = int(_has_class_token(model))
    # Possible numbers of prefix tokens in inner stages; by default also 0, for stages that drop their prefix tokens.
    inner = getattr(model, "inner_prefix_tokens", (0, 1))
    prefixes = tuple(dict.fromkeys((count, 0) if count else (0, *inner)))
    return prefixes, str(getattr(model, "output_fmt", "")).endswith("NHWC")


def _has_class_token(model: nn.Module) -> bool:
    return any(name.rpartition(".")[2].startswith("cls_token") for name, _ in model.named_parameters())


def model_name(model: nn.Module) -> str:
    """Return a model's timm name, or its class name if timm has no name for the model."""
    return (getattr(model, "pretrained_cfg", None) or {}).get("architecture") or type(model).__name__


def make_dummy_images(model: nn.Module, image_size: Size) -> Tensor:
    """Return a batch with one image of zeros, with the model's number of channels, device and dtype."""
    weight = next(p for p in model.parameters() if p.is_floating_point())
    first_conv = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels = getattr(model, "in_chans", None) or (first_conv.in_channels if first_conv is not None else 3)
    return torch.zeros(1, channels, *image_size, device=weight.device, dtype=weight.dtype)


@contextmanager
def temporary_eval_mode(module: nn.Module) -> Iterator[None]:
    """Run the `with` block with a module in evaluation mode and without gradients.

    Afterwards, the modes of all submodules and the states of the random generators are restored.
    """
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    devices = {p.device for p in module.parameters() if p.is_cuda}
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        for submodule, training in modes:
            submodule.training = training
