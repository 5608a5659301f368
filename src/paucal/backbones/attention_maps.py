"""Read the attention weights of a model, timm's or ours.

timm's attention layers share a convention that ours follow: `fused_attn` tells whether a fused kernel may be used,
which never exposes its weights; without it the weights pass through the submodule `attn_drop`. Other layers declare
where their weights can be seen (`AttentionLayout.weights`): where no submodule receives them, the output of the softmax
is kept.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from paucal.backbones.timm_attention import layout_of


class _Recorder:
    """A hook that is an object, not a closure, so that a deep copy of a model has its own hooks."""

    def __init__(self, maps: dict[str, Tensor], name: str) -> None:
        self.maps, self.name = maps, name

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.maps[self.name] = inputs[0]


class _Softmaxes(TorchFunctionMode):
    """Keeps the outputs of softmax in the attention layer that is running."""

    def __init__(self, maps: dict[str, Tensor]) -> None:
        super().__init__()
        self.maps = maps
        self.running_layer: str | None = None

    def watch(self, name: str, layer: nn.Module) -> list[Any]:
        """Follow a layer; return the handles of the hooks, which stop it when removed."""

        def set_running(running_layer: str | None) -> None:
            self.running_layer = running_layer

        return [
            layer.register_forward_pre_hook(lambda *_: set_running(name)),
            layer.register_forward_hook(lambda *_: set_running(None)),
        ]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.running_layer is not None and func in (Tensor.softmax, F.softmax):
            self.maps[self.running_layer] = result
        return result


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention layers whose weights can be read, by dotted name, shallow to deep.

    Example:
        >>> import timm
        >>> list(attention_layers(timm.create_model("vit_tiny_patch16_224", depth=2)))
        ['blocks.0.attn', 'blocks.1.attn']
    """
    return {name: module for name, module in model.named_modules() if _shows_weights(module)}


def _shows_weights(module: nn.Module) -> bool:
    weights = layout_of(module).weights
    if weights == "softmax":
        return True
    drops = isinstance(getattr(module, "attn_drop", None), nn.Module)
    return drops and (weights == "attn_drop" or hasattr(module, "fused_attn"))


@contextmanager
def recorded_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the weights of every attention layer while the model runs, with fused kernels switched off.

    The weights are taken after the softmax and before dropout, as (B, heads, queries, keys), or with one row per window
    where a layer works in windows. They carry gradients if the model does. A second run overwrites them. The model must
    be uncompiled, since compiled code ignores hooks that are placed later.

    Yields:
        A mapping from the layer's dotted name to its weights, empty until the model has run.

    Example:
        >>> import timm, torch
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32)
        >>> with recorded_attention(model) as maps:
        ...     logits = model(torch.zeros(1, 3, 32, 32))
        >>> maps["blocks.1.attn"].shape
        torch.Size([1, 3, 5, 5])
    """
    maps: dict[str, Tensor] = {}
    layers = attention_layers(model)
    was_fused = {name: layer.fused_attn for name, layer in layers.items() if hasattr(layer, "fused_attn")}
    softmaxes, handles = _Softmaxes(maps), []
    for name, layer in layers.items():
        if layout_of(layer).weights == "softmax":
            handles += softmaxes.watch(name, layer)
        else:
            handles.append(layer.attn_drop.register_forward_pre_hook(_Recorder(maps, name)))  # type: ignore[union-attr]
    try:
        for name in was_fused:
            layers[name].fused_attn = False  # type: ignore[assignment]
        with softmaxes:
            yield maps
    finally:
        for handle in handles:
            handle.remove()
        for name, is_fused in was_fused.items():
            layers[name].fused_attn = is_fused
