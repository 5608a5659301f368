"""Relevance of the cells for a class: the method of Chefer et al. for ViT, DeiT, LV-ViT and DHVT.

Chefer et al. 2021, "Transformer Interpretability Beyond Attention Visualization": the relevance of the class is
propagated back to every attention matrix (`rules`), weighted with the gradient of the class there, and the layers'
matrices are multiplied as in rollout, without normalising rows.

Differences from the published programs: any number of images at once; models that average their cells start from the
cells' relevance before the mean instead of a class token; LV-ViT's class logit is explained without the auxiliary
maximum, as there; DHVT's head tokens are folded into the tokens that outlive the layer.
"""

from dataclasses import dataclass

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from paucal.backbones.families.dhvt.model import Dhvt
from paucal.backbones.families.lvvit.model import LvVit
from paucal.backbones.probe import model_name
from paucal.explain.attention.head_tokens import fold_head_tokens
from paucal.explain.attention.maps import AttentionMap
from paucal.explain.attention.reading import run_recorded
from paucal.explain.attention.rollout import Flow, follow_back, last_row
from paucal.explain.attribution.relevance_mode import RelevanceMode
from paucal.explain.prepared import explainable, require_classes
from paucal.types import UserError

KINDS = (VisionTransformer, LvVit, Dhvt)  # what the rules are known to conserve relevance for


@dataclass(frozen=True, eq=False)
class LayerRelevance:
    """What one layer's attention means for a class.

    Attributes:
        attention: the layer; its weights are those of the forward pass.
        gradient: (B, 1, heads, Q, K) of the class's logit.
        relevance: (B, 1, heads, Q, K), the relevance that reaches the weights.
    """

    attention: AttentionMap
    gradient: Tensor
    relevance: Tensor


def has_relevance(model: nn.Module) -> bool:
    """Tell whether the rules are known for a model."""
    return isinstance(getattr(model, "_orig_mod", model), KINDS)


def layer_relevances(model: nn.Module, images: Tensor, classes: Tensor) -> list[LayerRelevance]:
    """Return gradient and relevance of every layer's attention, shallow to deep.

    Args:
        model: a ViT, DeiT, LV-ViT or DHVT.
        images: (B, C, H, W), normalised.
        classes: (B,) or a single one.

    Raises:
        UserError: the rules are not known for the model, or there is no such class.
    """
    if not has_relevance(model):
        raise UserError(
            f"the rules of relevance are known for ViT, DeiT, LV-ViT and DHVT, and {model_name(model)} is none: use "
            "--method gradient-rollout."
        )
    with explainable(model) as module, _class_head_alone(module), torch.enable_grad():
        tracked = images.detach().to(next(module.parameters()).dtype).requires_grad_()
        plain = run_recorded(module, tracked)
        chosen = require_classes(classes, plain.logits.shape[1], len(images)).to(plain.logits.device)
        one_hot = torch.zeros_like(plain.logits).scatter(1, chosen[:, None], 1.0)
        gradients = plain.gradients(one_hot)
        with RelevanceMode():
            relevances = run_recorded(module, tracked).gradients(one_hot)
    found = zip(plain.maps, gradients, relevances, strict=True)
    return [LayerRelevance(one.with_weights(one.weights.detach()), g, r) for one, g, r in found]


def relevance(model: nn.Module, images: Tensor, classes: Tensor, start_layer: int = 0) -> Tensor:
    """Return the relevance of every cell for a class, (B, rows, columns), not below 0.

    Args:
        model: a ViT, DeiT, LV-ViT or DHVT.
        images: (B, C, H, W), normalised.
        classes: (B,) or a single one.
        start_layer: the first layer that counts.

    Raises:
        UserError: as `layer_relevances`.
    """
    layers = layer_relevances(model, images, classes)[start_layer:]
    weighted = [
        one.attention.with_weights((one.gradient * one.relevance).clamp(min=0).mean(2, keepdim=True)) for one in layers
    ]
    return rolled_out(model, weighted, len(images))


def rolled_out(model: nn.Module, layers: list[AttentionMap], batch: int) -> Tensor:
    """Return (1 + A_L) ... (1 + A_1) in the row of the class token, or of the mean of the cells, on the cells."""
    folded = [fold_head_tokens(one, average=False) for one in layers]
    start = last_row(model, folded[-1].tokens, batch, folded[-1].weights)
    flow: Flow = follow_back(start, folded, lambda values, layer: values + layer.flow(values))
    return flow.tokens.to_grid(flow.values)


class _class_head_alone:  # noqa: N801 (a context)
    """Leave LV-ViT's maximum over the auxiliary classifier out of the logits meanwhile."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> None:
        if isinstance(self.module, LvVit):
            self.weight, self.module.aux_weight = self.module.aux_weight, 0.0

    def __exit__(self, *problem: object) -> None:
        if isinstance(self.module, LvVit):
            self.module.aux_weight = self.weight
