"""Read the attention maps of any layer of a transformer, each with its place in the image."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paucal.backbones.attention_maps import attention_layers, recorded_attention
from paucal.backbones.probe import model_name
from paucal.explain.attention.calls import Call
from paucal.explain.attention.maps import AttentionMap
from paucal.explain.attention.placing import as_groups, place
from paucal.explain.prepared import explainable, forward
from paucal.types import UserError


@torch.no_grad()
def read_attention(model: nn.Module, images: Tensor, layers: Sequence[str] | None = None) -> list[AttentionMap]:
    """Run a model on its explicit path and return its attention, shallow to deep.

    The fused kernels are switched off meanwhile; compiled models, and models in half precision, are read as
    `explainable` makes them.

    Args:
        model: a timm transformer, in any mode.
        images: (B, C, H, W), normalised as the model expects.
        layers: dotted names, by default all.

    Raises:
        UserError: the model has no attention between cells, there is no such layer, or the images do not fit.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=(32, 64))
        >>> last = read_attention(model, torch.zeros(1, 3, 32, 64))[-1]
        >>> last.layer, last.tokens.prefix, last.cell_map("class").shape
        ('blocks.1.attn', ('class',), torch.Size([1, 3, 2, 4]))
    """
    with explainable(model) as module:
        maps = run_recorded(module, images).maps
    if layers is None:
        return maps
    known = {one.layer: one for one in maps}
    missing = [name for name in layers if name not in known]
    if missing:
        raise UserError(f"there is no layer {missing[0]!r} to read; {model_name(module)} has {', '.join(known)}.")
    return [known[name] for name in layers]


class Recorded(NamedTuple):
    """One forward pass with its attention.

    Attributes:
        logits: (B, K); features of a model without a classifier.
        maps: the layers whose places are known, shallow to deep.
        raw: their weights as the model computed with them, to be differentiated by; `maps` hold views.
        layers: that computed them.
    """

    logits: Tensor
    maps: list[AttentionMap]
    raw: list[Tensor]
    layers: list[nn.Module]

    def gradients(self, output_gradient: Tensor) -> list[Tensor]:
        """Return the gradients of the logits' product with (B, K) numbers by the weights, shaped as in `maps`."""
        found = torch.autograd.grad(self.logits, self.raw, output_gradient, allow_unused=True, retain_graph=True)
        return [
            torch.zeros_like(one.weights) if gradient is None else as_groups(gradient, layer, len(one.weights))
            for one, layer, gradient in zip(self.maps, self.layers, found, strict=True)
        ]


def run_recorded(module: nn.Module, images: Tensor) -> Recorded:
    """Run a model and keep its attention, with gradients where they are enabled.

    Args:
        module: as `explainable` yields it.
        images: as in `read_attention`.

    Raises:
        UserError: as `read_attention`.
    """
    layers = attention_layers(module)
    require_attention(module)
    calls: dict[str, Call] = {}
    inputs: dict[str, tuple[Any, ...]] = {}
    handles = []
    for name, layer in layers.items():
        block = module.get_submodule(name.rpartition(".")[0])
        handles.append(block.register_forward_pre_hook(_keep_block(inputs, name)))
        handles.append(layer.register_forward_pre_hook(_keep_call(calls, inputs, name, block)))
    try:
        with recorded_attention(module) as recorded:
            logits = forward(module, images)
            weights = dict(recorded)
    finally:
        for handle in handles:
            handle.remove()
    found = {name: place(name, weights[name], calls[name], module, images) for name in layers if name in weights}
    maps = [one for one in found.values() if one is not None]
    if not maps:
        raise UserError(
            f"the attention of {model_name(module)} is none between places of the image: use integrated-gradients or "
            "grad-cam."
        )
    read = [one.layer for one in maps]
    return Recorded(logits, maps, [weights[name] for name in read], [layers[name] for name in read])


def require_attention(module: nn.Module) -> None:
    """Refuse a model without attention that can be read.

    Raises:
        UserError: there is none.
    """
    if not attention_layers(module):
        raise UserError(
            f"{model_name(module)} has no attention that can be read, as convolutional networks: use grad-cam or "
            "integrated-gradients."
        )


def _keep_block(inputs: dict[str, tuple[Any, ...]], name: str) -> Any:
    def keep(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs[name] = arguments

    return keep


def _keep_call(calls: dict[str, Call], inputs: dict[str, tuple[Any, ...]], name: str, block: nn.Module) -> Any:
    def keep(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        calls[name] = Call(module, block, arguments, inputs.get(name, ()))

    return keep
