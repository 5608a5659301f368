"""Records the attention weights of a model in a forward pass.

The attention layers of timm and paucal follow a convention. If `fused_attn` is True, a fused kernel is used, which does
not output the weights. If `fused_attn` is False, the weights pass through the submodule `attn_drop`. For other layers,
`AttentionLayout.weights` says how to get the weights. If the weights pass through no submodule, the output of the
softmax is intercepted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from paucal.backbones.probe import HookedTensors, TensorHook
from paucal.backbones.timm_attention import layout_of


class _SoftmaxRecorder(TorchFunctionMode):
    """Stores in `maps` the output of each softmax that runs inside a watched attention layer."""

    def __init__(self, maps: dict[str, Tensor]) -> None:
        super().__init__()
        self.maps = maps
        self.running_layer: str | None = None

    def watch(self, name: str, layer: nn.Module) -> list[Any]:
        """Watch a layer until the returned hook handles are removed."""

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
    """Return the attention layers whose weights can be recorded, by dotted name, from shallow to deep."""
    layers = {}
    for name, module in model.named_modules():
        weights = layout_of(module).weights
        passes_attn_drop = isinstance(getattr(module, "attn_drop", None), nn.Module) and (
            weights == "attn_drop" or hasattr(module, "fused_attn")
        )
        if weights == "softmax" or passes_attn_drop:
            layers[name] = module
    return layers


@contextmanager
def recorded_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the weights of every attention layer in the model's forward passes, with fused kernels switched off.

    The weights are taken after the softmax and before dropout. Their shape is (B, heads, queries, keys); in layers with
    windows, the first axis has an entry for each window of each image. Gradients flow through the weights unless the
    forward pass runs without gradients. A second forward pass overwrites the weights, which are in the yielded
    dictionary by the dotted names of layers. The model must not be compiled, since compiled code ignores hooks that are
    added later.
    """
    hooked = HookedTensors()
    hooked.tensors = maps = {}
    layers = attention_layers(model)
    was_fused = {name: layer.fused_attn for name, layer in layers.items() if hasattr(layer, "fused_attn")}
    softmaxes, handles = _SoftmaxRecorder(maps), []
    for name, layer in layers.items():
        if layout_of(layer).weights == "softmax":
            handles += softmaxes.watch(name, layer)
        else:
            handles.append(layer.attn_drop.register_forward_pre_hook(TensorHook(hooked, name)))  # type: ignore[union-attr]
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
