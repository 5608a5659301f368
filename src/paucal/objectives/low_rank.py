"""Low-rank adapters, which restrict the change of each attention layer's weights to a product of two thin matrices.

This is LoRA (Hu et al., ICLR 2022) on all linear layers of attention, as in CLIP-LoRA (Zanella and Ben Ayed, 2024,
arXiv:2405.18541). The adapters are always merged into the layers' weights: in training, gradients go to the adapters,
and after every step the weights are updated by the change of the products. So the model that is evaluated, averaged,
saved and exported is an ordinary network without adapters.
"""

from typing import Any

import torch
from torch import Tensor, nn

from paucal.backbones.probe import model_name
from paucal.types import UserError

# Last part of the names of linear layers in attention modules, in timm's models.
LAYER_NAMES = ("qkv", "q", "k", "v", "kv", "q_proj", "k_proj", "v_proj", "out_proj", "proj")


def attention_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return a model's linear layers for queries, keys, values and attention output projections, by name."""
    layers = {}
    for name, module in model.named_modules():
        *parents, last = name.split(".")
        if isinstance(module, nn.Linear) and last in LAYER_NAMES and any("attn" in parent for parent in parents):
            layers[name] = module
    return layers


class LowRankAdapters(nn.Module):
    """Adapters on the attention layers of a model, with hooks on the objective's forward pass, which uses the model.

    `rank` is the rank of the product of each adapter's two matrices.
    """

    def __init__(self, objective: nn.Module, model: nn.Module, rank: int) -> None:
        super().__init__()
        self._layers = list(attention_layers(model).values())
        if not self._layers:
            raise UserError(
                f"--lora-rank adds adapters to attention layers, but {model_name(model)} has no attention layers: "
                "remove --lora-rank, or choose a transformer with --model."
            )
        down = [torch.empty(rank, layer.in_features) for layer in self._layers]
        for matrix in down:
            nn.init.kaiming_uniform_(matrix, a=5**0.5)
        self.down = nn.ParameterList(down)
        self.up = nn.ParameterList(torch.zeros(layer.out_features, rank) for layer in self._layers)
        self._weights: list[Tensor] = []
        self._merged_products: list[Tensor] = []
        objective.register_forward_pre_hook(self._attach_products)
        objective.register_forward_hook(self._restore_weights, always_call=True)

    def products(self) -> list[Tensor]:
        """Return the change of each attention layer's weights, one (out_features, in_features) tensor per layer."""
        return [up @ down for up, down in zip(self.up, self.down, strict=True)]

    def before_step(self, frozen: bool = False) -> None:
        """Store the products that are merged into the weights; if `frozen`, also drop the adapters' gradients."""
        if frozen:
            self.zero_grad()
        with torch.no_grad():
            self._merged_products = self.products()

    def after_step(self) -> None:
        """Replace the products that are merged into the weights by the new products."""
        with torch.no_grad():
            products = zip(self._layers, self.products(), self._merged_products, strict=True)
            for layer, new_product, old_product in products:
                layer.weight.add_(new_product - old_product)
        self._merged_products = []

    def _attach_products(self, *_: Any) -> None:
        self._weights = [layer.weight for layer in self._layers]
        for layer, weight, product in zip(self._layers, self._weights, self.products(), strict=True):
            # The difference is 0, but its gradient flows into the product and thus into the adapters.
            layer._parameters["weight"] = weight + (product - product.detach())  # type: ignore[assignment]

    def _restore_weights(self, *_: Any) -> None:
        for layer, weight in zip(self._layers, self._weights, strict=True):
            layer._parameters["weight"] = weight  # type: ignore[assignment]
        self._weights = []
