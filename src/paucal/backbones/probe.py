"""Finds out, with one forward pass, how to get grids of features from a timm model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paucal.backbones.forward_hooks import (
    HookedTensors,
    block_names,
    final_norm_names,
    hook_input,
    hook_output,
    merging_names,
)
from paucal.backbones.layout import LayoutHints, Size, last_tensor, to_grid
from paucal.types import UserError


@dataclass(frozen=True)
class FeaturePlan:
    """How to get a model's features, as determined by a forward pass.

    Attributes:
        final_is_grid: Whether the output of `forward_features` is a grid. If not, the deepest intermediate map is used
            as the last grid.
        norm: Name of the final norm, whose input is the last grid before normalisation; None if there is no such norm.
        blocks: Names of the blocks whose outputs are grids, shallow to deep.
        merging_layers: Names of the layers that merge patches, shallow to deep.
        prefixes: Possible numbers of leading tokens that are not cells, the most likely first.
        channels_last: Whether the model states that its maps are (B, H, W, C).
        class_token: Whether the pooled features are the class token, which is the first token.
        last_shape: (channels, rows, columns) of the last grid in this forward pass.
    """

    final_is_grid: bool
    norm: str | None
    blocks: tuple[str, ...]
    merging_layers: tuple[str, ...]
    prefixes: tuple[int, ...]
    channels_last: bool
    class_token: bool
    last_shape: tuple[int, int, int]


def make_feature_plan(model: nn.Module, images: Tensor, hooked: HookedTensors) -> FeaturePlan:
    """Run the model on images, and return its plan; register hooks that store the needed tensors in `hooked`."""
    size = (images.shape[-2], images.shape[-1])
    handles = {name: hook_output(model, name, hooked) for name in (*block_names(model), *merging_names(model))}
    handles |= {name: hook_input(model, name, hooked) for name in final_norm_names(model)}
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
    inner = getattr(model, "inner_prefix_tokens", (0, 1))  # for stages whose prefix tokens are dropped
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
