"""Relevance of patches for a class by the method of Chefer et al., for ViT, DeiT, LV-ViT and DHVT.

Chefer et al. 2021, "Transformer Interpretability Beyond Attention Visualization": the relevance of the class is
propagated back to each attention matrix (`relevance_mode`) and multiplied by the gradient of the class's logit with
respect to that matrix. The matrices of all layers are then multiplied as in rollout, without normalising rows.

Unlike the authors' code, several images are processed at once. For models that average their patch tokens instead of
using a class token, the rollout starts from the relevance of the patches before the mean. DHVT's head tokens are folded
into the other tokens. As in the authors' code, the logit of LV-ViT is explained without the contribution of the
auxiliary head.
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
from paucal.explain.attention.rollout import TokenContributions, class_contributions, roll_out, run_with_blocks
from paucal.explain.attribution.relevance_mode import RelevanceMode
from paucal.explain.prepared import one_hot_classes, prepare_for_hooks, require_classifier, with_gradient
from paucal.types import UserError


@dataclass(frozen=True, eq=False)
class LayerRelevance:
    """The gradient and the relevance of one layer's attention for a class."""

    attention: AttentionMap  # attention of the layer in the forward pass
    gradient: Tensor  # (B, 1, heads, Q, K) gradient of the class's logit with respect to the attention weights
    relevance: Tensor  # (B, 1, heads, Q, K) relevance of the attention weights


def has_relevance(model: nn.Module) -> bool:
    """Return whether there are relevance rules for a model's architecture family."""
    return relevance_family(getattr(model, "_orig_mod", model)) is not None


@dataclass(frozen=True, eq=False)
class Relevances:
    """The relevance of a model's layers for a class."""

    layers: list[LayerRelevance]  # relevance of each layer's attention, from the first to the last layer
    start: TokenContributions  # relevance of the last layer's tokens, which sums to 1


def layer_relevances(model: nn.Module, images: Tensor, classes: Tensor) -> Relevances:
    """Return the gradient and the relevance of each layer's attention for a class.

    Args:
        model: A ViT, DeiT, LV-ViT or DHVT.
        images: (B, C, H, W) images, normalised.
        classes: (B,) class indices, or a single index for all images.

    Raises:
        UserError: there are no relevance rules for the model, or the class does not exist.
    """
    if not has_relevance(model):
        raise UserError(
            f"--method relevance supports only ViT, DeiT, LV-ViT and DHVT, not {model_name(model)}: "
            "use --method gradient-rollout."
        )
    require_classifier(model)
    with prepare_for_hooks(model) as module, _without_auxiliary_head(module), torch.enable_grad():
        tracked = with_gradient(module, images)
        gradient_run = run_recorded(module, tracked)
        one_hot = one_hot_classes(gradient_run.logits, classes)
        gradients = gradient_run.gradients(one_hot)
        with RelevanceMode():
            relevance_run, outputs = run_with_blocks(module, tracked)
        start = class_contributions(module, relevance_run, outputs, one_hot, relevances=True)
        relevances = relevance_run.gradients(one_hot)
    layers = [
        LayerRelevance(attention.with_weights(attention.weights.detach()), gradient, relevance)
        for attention, gradient, relevance in zip(gradient_run.maps, gradients, relevances, strict=True)
    ]
    return Relevances(layers, start)


def relevance(model: nn.Module, images: Tensor, classes: Tensor, start_layer: int = 0) -> Tensor:
    """Return the relevance of each patch for a class, (B, rows, columns), >= 0, from the layer `start_layer` on."""
    relevances = layer_relevances(model, images, classes)
    weighted = [
        layer.attention.with_weights((layer.gradient * layer.relevance).clamp(min=0).mean(2, keepdim=True))
        for layer in relevances.layers[start_layer:]
    ]
    return roll_out(weighted, relevances.start)


@contextmanager
def _without_auxiliary_head(module: nn.Module) -> Iterator[None]:
    """Temporarily exclude LV-ViT's auxiliary head from the logits."""
    weight = getattr(module, "aux_weight", None)
    if weight is None:
        yield
        return
    module.aux_weight = 0.0  # type: ignore[assignment]
    try:
        yield
    finally:
        module.aux_weight = weight
