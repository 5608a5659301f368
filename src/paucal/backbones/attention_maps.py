"""Read the attention weights of a model, timm's or ours.

timm's attention layers share a convention that ours follow: `fused_attn` tells whether a fused kernel may be used,
which never shows its weights, and without it they pass through the submodule `attn_drop`. Swin v2 has no fused path.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from timm.models.swin_transformer_v2 import WindowAttention
from torch import Tensor, nn


class _Recorder:
    """A hook: an object rather than a closure, so that a deep copy of a model carries its own."""

    def __init__(self, maps: dict[str, Tensor], name: str) -> None:
        self.maps, self.name = maps, name

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.maps[self.name] = inputs[0]


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attention layers whose weights can be read, by dotted name, shallow to deep.

    Example:
        >>> import timm
        >>> list(attention_layers(timm.create_model("vit_tiny_patch16_224", depth=2)))
        ['blocks.0.attn', 'blocks.1.attn']
    """
    return {
        name: module
        for name, module in model.named_modules()
        if (hasattr(module, "fused_attn") or isinstance(module, WindowAttention))
        and isinstance(getattr(module, "attn_drop", None), nn.Module)
    }


@contextmanager
def recorded_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the weights of every attention layer while the model runs, on its explicit path.

    The weights are those after the softmax and before dropout, (B, heads, queries, keys), or one row per window
    where a layer works in windows; they carry gradients where the model does. A second run overwrites them.

    Args:
        model: not compiled, since compiled code does not stop at hooks placed afterwards.

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
    fused = {name: layer.fused_attn for name, layer in layers.items() if hasattr(layer, "fused_attn")}
    handles = [
        layer.attn_drop.register_forward_pre_hook(_Recorder(maps, name))  # type: ignore[union-attr]
        for name, layer in layers.items()
    ]
    try:
        for name in fused:
            layers[name].fused_attn = False  # type: ignore[assignment]
        yield maps
    finally:
        for handle in handles:
            handle.remove()
        for name, usual in fused.items():
            layers[name].fused_attn = usual
