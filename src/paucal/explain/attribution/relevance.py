"""Relevance of the cells for a class: the method of Chefer et al. for ViT, DeiT, LV-ViT and DHVT.

Chefer et al. 2021, "Transformer Interpretability Beyond Attention Visualization": the relevance of the class is
propagated back to every attention matrix (`relevance_mode`), weighted with the gradient of the class there, and the
layers' matrices are multiplied as in rollout, without normalising rows.

Differences from the authors' code: it handles any number of images at once; in models that average their cells, it
starts from the cells' relevance before the mean instead of a class token; DHVT's head tokens are folded into the other
tokens. As in that code, LV-ViT's class logit is explained without the auxiliary maximum.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paucal.backbones.probe import model_name
from paucal.backbones.timm_attention import relevance_family
from paucal.explain.attention.maps import AttentionMap
from paucal.explain.attention.reading import run_recorded
from paucal.explain.attention.rollout import Flow, class_contributions, rolled_out, run_with_blocks
from paucal.explain.attribution.relevance_mode import RelevanceMode
from paucal.explain.prepared import explainable, one_hot_classes, require_classifier, with_gradient
from paucal.types import UserError


@dataclass(frozen=True, eq=False)
class LayerRelevance:
    """The gradient and the relevance of one layer's attention for a class.

    Attributes:
        attention: Attention of the layer in the forward pass.
        gradient: (B, 1, heads, Q, K) of the class's logit.
        relevance: (B, 1, heads, Q, K), the relevance that reaches the weights.
    """

    attention: AttentionMap
    gradient: Tensor
    relevance: Tensor


def has_relevance(model: nn.Module) -> bool:
    """Return whether there are rules for a model."""
    return relevance_family(getattr(model, "_orig_mod", model)) is not None


@dataclass(frozen=True, eq=False)
class Relevances:
    """The relevance of a model's layers for a class.

    Attributes:
        layers: Relevance of each layer, shallow to deep.
        start: Relevance of the last tokens, with sum 1.
    """

    layers: list[LayerRelevance]
    start: Flow


def layer_relevances(model: nn.Module, images: Tensor, classes: Tensor) -> Relevances:
    """Return gradient and relevance of every layer's attention.

    Args:
        model: A ViT, DeiT, LV-ViT or DHVT.
        images: (B, C, H, W), normalised.
        classes: (B,) or a single one.

    Raises:
        UserError: there are no rules for the model, or no such class.
    """
    if not has_relevance(model):
        raise UserError(
            f"there are rules of relevance for ViT, DeiT, LV-ViT and DHVT, but not for {model_name(model)}: "
            "use --method gradient-rollout."
        )
    require_classifier(model)
    with explainable(model) as module, _class_head_alone(module), torch.enable_grad():
        tracked = with_gradient(module, images)
        plain = run_recorded(module, tracked)
        one_hot = one_hot_classes(plain.logits, classes)
        gradients = plain.gradients(one_hot)
        with RelevanceMode():
            carried, outputs = run_with_blocks(module, tracked)
        start = class_contributions(module, carried, outputs, one_hot, relevances=True)
        relevances = carried.gradients(one_hot)
    layers = [
        LayerRelevance(attention.with_weights(attention.weights.detach()), gradient, relevance)
        for attention, gradient, relevance in zip(plain.maps, gradients, relevances, strict=True)
    ]
    return Relevances(layers, start)


def relevance(model: nn.Module, images: Tensor, classes: Tensor, start_layer: int = 0) -> Tensor:
    """Return the relevance of every cell for a class, (B, rows, columns), not below 0."""
    relevances = layer_relevances(model, images, classes)
    weighted = [
        layer.attention.with_weights((layer.gradient * layer.relevance).clamp(min=0).mean(2, keepdim=True))
        for layer in relevances.layers[start_layer:]
    ]
    return rolled_out(weighted, relevances.start)


@contextmanager
def _class_head_alone(module: nn.Module) -> Iterator[None]:
    """Remove the maximum over an auxiliary classifier (LV-ViT's) from the logits within the block."""
    weight = getattr(module, "aux_weight", None)
    if weight is None:
        yield
        return
    module.aux_weight = 0.0  # type: ignore[assignment]
    try:
        yield
    finally:
        module.aux_weight = weight
