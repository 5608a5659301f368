"""Low-rank adapters: the change of each attention layer's weights is the product of two thin matrices.

LoRA (Hu et al., ICLR 2022), on all linear layers of attention as in CLIP-LoRA (Zanella and Ben Ayed, 2024, 2405.18541).
The weights always include the products: training only routes the gradient to the adapters, and updates the weights
after every step. So an ordinary network, as after merging, is evaluated, averaged, saved and exported.
"""

from typing import Any

import torch
from torch import Tensor, nn

from paucal.backbones.probe import model_name
from paucal.types import UserError

LAYERS = ("qkv", "q", "k", "v", "kv", "q_proj", "k_proj", "v_proj", "out_proj", "proj")


def attention_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers of a model's attention by name: queries, keys, values and the projection after them.

    Example:
        >>> import timm
        >>> list(attention_layers(timm.create_model("vit_tiny_patch16_224", depth=1)))
        ['blocks.0.attn.qkv', 'blocks.0.attn.proj']
    """
    layers = {}
    for name, module in model.named_modules():
        *parents, last = name.split(".")
        if isinstance(module, nn.Linear) and last in LAYERS and any("attn" in parent for parent in parents):
            layers[name] = module
    return layers


class LowRankAdapters(nn.Module):
    """Adapters on the attention of a model, which an objective's forward passes train."""

    def __init__(self, objective: nn.Module, model: nn.Module, rank: int) -> None:
        super().__init__()
        self._layers = list(attention_layers(model).values())
        if not self._layers:
            raise UserError(f"--lora-rank adapts attention, but {model_name(model)} has none: leave it out.")
        down = [torch.empty(rank, layer.in_features) for layer in self._layers]
        for matrix in down:
            nn.init.kaiming_uniform_(matrix, a=5**0.5)
        self.down = nn.ParameterList(down)
        self.up = nn.ParameterList(torch.zeros(layer.out_features, rank) for layer in self._layers)
        self._weights: list[Tensor] = []
        self._before: list[Tensor] = []
        objective.register_forward_pre_hook(self._attach_products)
        objective.register_forward_hook(self._restore_weights, always_call=True)

    def products(self) -> list[Tensor]:
        """Return the (out, in) change of each layer's weights."""
        return [up @ down for up, down in zip(self.up, self.down, strict=True)]

    def before_step(self, held: bool = False) -> None:
        """Store the products that the weights include; adapters that are held at this step get no gradients."""
        if held:
            self.zero_grad()
        with torch.no_grad():
            self._before = self.products()

    def after_step(self) -> None:
        """Update the weights with the adapters."""
        with torch.no_grad():
            for layer, new_product, old_product in zip(self._layers, self.products(), self._before, strict=True):
                layer.weight.add_(new_product - old_product)
        self._before = []

    def _attach_products(self, *_: Any) -> None:
        self._weights = [layer.weight for layer in self._layers]
        for layer, weight, product in zip(self._layers, self._weights, self.products(), strict=True):
            # Equal to the weight, with the gradient of the product.
            layer._parameters["weight"] = weight + (product - product.detach())  # type: ignore[assignment]

    def _restore_weights(self, *_: Any) -> None:
        for layer, weight in zip(self._layers, self._weights, strict=True):
            layer._parameters["weight"] = weight  # type: ignore[assignment]
        self._weights = []
