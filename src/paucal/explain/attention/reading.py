"""Reading of the attention of any layer of a transformer, with the positions of its tokens in the image.

A layer only computes (batch, heads, queries, keys) weights. The positions of the tokens are derived from the
`AttentionLayout` of the model's family, and from the inputs of the layer and of the block that contains the layer. In
full attention, for example, the number of queries equals the number of input tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paucal.backbones.attention_layout import AttentionCall, AttentionGroups, Size, Tokens, prefix_names
from paucal.backbones.attention_maps import attention_layers, recorded_attention
from paucal.backbones.layout import grid_sides
from paucal.backbones.probe import model_name
from paucal.backbones.timm_attention import layout_of
from paucal.explain.attention.maps import AttentionMap
from paucal.explain.prepared import forward, prepare_for_hooks
from paucal.types import UserError

MAX_PREFIX = 9  # largest number of tokens before the patch tokens: 8 registers and a class token


@torch.no_grad()
def read_attention(model: nn.Module, images: Tensor, layers: Sequence[str] | None = None) -> list[AttentionMap]:
    """Run a model on images and return the attention of its layers, from the first to the last.

    Fused kernels, which do not return attention weights, are disabled during the call. Compiled models and models in
    half precision are supported.

    Args:
        model: A timm transformer, in training or evaluation mode.
        images: (B, C, H, W) images, normalised as the model expects.
        layers: Dotted names of the layers, by default all layers.

    Raises:
        UserError: the model has no attention between patches or no such layer, or does not support the images' size.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=(32, 64))
        >>> last = read_attention(model, torch.zeros(1, 3, 32, 64))[-1]
        >>> last.layer, last.tokens.prefix, last.cell_map("class").shape
        ('blocks.1.attn', ('class',), torch.Size([1, 3, 2, 4]))
    """
    with prepare_for_hooks(model) as module:
        maps = run_recorded(module, images).maps
    if layers is None:
        return maps
    attention_of = {attention.layer: attention for attention in maps}
    missing = [name for name in layers if name not in attention_of]
    if missing:
        raise UserError(
            f"{model_name(module)} has no attention layer {missing[0]!r}: choose from {', '.join(attention_of)}."
        )
    return [attention_of[name] for name in layers]


class AttentionRecord(NamedTuple):
    """The outputs and the attention of one forward pass."""

    logits: Tensor  # (B, K) logits; features if the model has no classifier
    maps: list[AttentionMap]  # attention of the layers whose token positions are known, from the first to the last
    # Attention weights of these layers as used in the forward pass, from which gradients are computed. The weights in
    # `maps` are views of these tensors.
    raw_weights: list[Tensor]
    layers: list[nn.Module]  # attention layers that computed the weights

    def gradients(self, output_gradient: Tensor) -> list[Tensor]:
        """Return the gradients of the weights in `maps`, given the (B, K) gradient of the logits."""
        gradients = torch.autograd.grad(
            self.logits, self.raw_weights, output_gradient, allow_unused=True, retain_graph=True
        )
        return [
            torch.zeros_like(attention.weights)
            if gradient is None
            else as_groups(gradient, layer, len(attention.weights))
            for attention, layer, gradient in zip(self.maps, self.layers, gradients, strict=True)
        ]


def run_recorded(module: nn.Module, images: Tensor) -> AttentionRecord:
    """Run a model and record its attention; the result can be differentiated if gradients are enabled."""
    layers = attention_layers(module)
    require_attention(module)
    calls: dict[str, AttentionCall] = {}
    inputs: dict[str, tuple[Any, ...]] = {}
    handles = []
    for name, layer in layers.items():
        # The layer, its parent module, and so on up to the model.
        name_parts = name.split(".")
        modules = tuple(module.get_submodule(".".join(name_parts[:end])) for end in range(len(name_parts), -1, -1))

        def keep_inputs(block: nn.Module, arguments: tuple[Any, ...], name: str = name) -> None:
            inputs[name] = arguments

        def keep_call(layer: nn.Module, arguments: tuple[Any, ...], name: str = name, modules: Any = modules) -> None:
            calls[name] = AttentionCall(modules, arguments, inputs.get(name, ()))

        handles += [modules[1].register_forward_pre_hook(keep_inputs), layer.register_forward_pre_hook(keep_call)]
    try:
        with recorded_attention(module) as recorded:
            logits = forward(module, images)
            weights = dict(recorded)
    finally:
        for handle in handles:
            handle.remove()
    candidates = (add_positions(name, weights[name], calls[name], images) for name in layers if name in weights)
    maps = [attention for attention in candidates if attention is not None]
    if not maps:
        raise UserError(
            f"the attention layers of {model_name(module)} do not attend between positions in the image: use "
            "integrated-gradients or grad-cam."
        )
    names = [attention.layer for attention in maps]
    return AttentionRecord(logits, maps, [weights[name] for name in names], [layers[name] for name in names])


def require_attention(module: nn.Module) -> None:
    """Raise a UserError if a model has no readable attention."""
    if not attention_layers(module):
        raise UserError(f"{model_name(module)} has no attention weights to read: use grad-cam or integrated-gradients.")


def add_positions(name: str, weights: Tensor, call: AttentionCall, images: Tensor) -> AttentionMap | None:
    """Return a layer's attention with the positions of its queries and keys; None if the positions are unknown."""
    size, positions = (images.shape[-2], images.shape[-1]), None
    for layout in map(layout_of, call.modules):
        if positions is None and layout.find_groups is not None:
            positions = layout.find_groups(call, weights, size)
    positions = _global_groups(weights, call, images) if positions is None else positions
    return None if positions is None else AttentionMap(name, as_groups(weights, call.layer, len(images)), *positions)


def as_groups(weights: Tensor, layer: nn.Module, batch_size: int) -> Tensor:
    """Reshape the attention weights of a layer, or their gradients, to (B, groups, heads, queries, keys).

    Layers compute weights as (B, heads, Q, K), (B * windows, heads, Q, K), five dimensions with a separate dimension
    for windows, or (B * windows * heads, Q, K).
    """
    if weights.ndim == 5:
        return weights.transpose(1, 2) if layout_of(layer).groups_last else weights
    return _with_heads(weights, layer).unflatten(0, (batch_size, -1))


def _with_heads(weights: Tensor, layer: nn.Module) -> Tensor:
    """Reshape (N * heads, Q, K) weights, as in SAM and SHViT (single head), to (N, heads, Q, K)."""
    return weights.unflatten(0, (-1, int(getattr(layer, "num_heads", 1)))) if weights.ndim == 3 else weights  # type: ignore[arg-type]


def _global_groups(weights: Tensor, call: AttentionCall, images: Tensor) -> AttentionGroups | None:
    layer, layout = call.layer, layout_of(call.layer)
    inputs, weights = call.inputs[0], _with_heads(weights, layer)
    if weights.ndim != 4 or len(weights) != len(images) or not layout.between_cells:
        return None  # the positions of the windows are unknown, or channels attend to each other
    suffix, pools_queries = layout.suffix(layer), layout.pools == "queries"
    size = (images.shape[-2], images.shape[-1])
    queries, keys = weights.shape[2], weights.shape[3]
    counts: tuple[int, ...] = ()  # possible numbers of tokens of a (B, N, C), (B, H, W, C) or (B, C, H, W) input
    if inputs.ndim == 3:
        counts = (inputs.shape[1],)
    elif inputs.ndim == 4:
        counts = (inputs.shape[1] * inputs.shape[2], inputs.shape[2] * inputs.shape[3])
    if not pools_queries and queries - len(suffix) not in counts and not (queries == 1 and keys in counts):
        return None
    if queries not in (1, keys) and layout.pools == "nothing":
        return None  # keys may be pooled along rows (NextViT)
    n_prefix = int(getattr(layer, "has_cls_token", False)) if pools_queries else None
    tokens = layout_of_tokens(
        keys if queries == 1 and not pools_queries else queries, call.model, size, suffix, n_prefix
    )
    if tokens is None:
        return None
    key_tokens = tokens if keys == len(tokens) else layout_of_tokens(keys, call.model, size, prefix=len(tokens.prefix))
    if key_tokens is None:
        return None
    return AttentionGroups(
        tokens, key_tokens, *(torch.arange(count, device=weights.device)[None] for count in (queries, keys))
    )


def layout_of_tokens(
    count: int, model: nn.Module, image_size: Size, suffix: tuple[str, ...] = (), prefix: int | None = None
) -> Tokens | None:
    """Return the names and the grid of `count` tokens of a model; None if the patch tokens do not form a grid.

    If the number of tokens before the patches, `prefix`, is None, it is derived from the model or the aspect ratio.
    """
    model_prefix = int(getattr(model, "num_prefix_tokens", 0) or 0)
    for n_prefix in (model_prefix, *range(MAX_PREFIX)) if prefix is None else (prefix,):
        sides = grid_sides(count - len(suffix) - n_prefix, image_size)
        if sides is not None:
            return Tokens(sides, prefix_names(model, n_prefix), suffix)
    return None
