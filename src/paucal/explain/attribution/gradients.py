"""Gradient times feature, over all blocks of any model, and gradient times attention, rolled out."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.forward_hooks import block_names
from paucal.backbones.layout import Hints, last_tensor, to_grid
from paucal.backbones.probe import model_name
from paucal.explain.attention.maps import fold_head_tokens
from paucal.explain.attention.reading import require_attention
from paucal.explain.attention.rollout import follow_back, keep_output, run_with_blocks, start_of
from paucal.explain.attribution.pruning import PrunedGradients
from paucal.explain.prepared import explainable, require_classes, require_classifier, run
from paucal.types import UserError


def gradient_rollout(model: nn.Module, images: Tensor, classes: Tensor, pruned: bool = False) -> Tensor:
    """Return gradient x attention rollout for a class, (B, rows, columns) on the cells of the first layer, >= 0.

    Chefer et al. 2021, "Generic Attention-model Explainability": each layer adds the positive part of gradient times
    attention, averaged over heads, to the shortcut. Here rows are followed instead of whole matrices, so windows (Swin)
    and merged cells work as well. A model that averages its cells has no class token to start from; there the start is
    the positive part of gradient times feature of the last cells, where the original would start from all alike.

    Args:
        model: A timm transformer.
        images: (B, C, H, W), normalised.
        classes: (B,) or a single one.
        pruned: Use LibraGrad's gradients, with products halved.

    Raises:
        UserError: the model has no attention between cells, or there is no such class.
    """
    with explainable(model) as module, torch.enable_grad():
        require_attention(module)
        require_classifier(module)
        tracked = _tracked(module, images)
        with PrunedGradients() if pruned else nullcontext():
            recorded, outputs = run_with_blocks(module, tracked)
        one_hot = _one_hot(recorded.logits, classes)
        start = start_of(module, recorded, outputs, one_hot)
        gradients = recorded.gradients(one_hot)
    layers = [
        fold_head_tokens(one.with_weights((one.weights.detach() * g).clamp(min=0).mean(2, keepdim=True)), False)
        for one, g in zip(recorded.maps, gradients, strict=True)
    ]
    flow = follow_back(start, layers)
    return flow.tokens.to_grid(flow.values)


def gradient_features(model: nn.Module, images: Tensor, classes: Tensor, pruned: bool = True) -> Tensor:
    """Return gradient times feature for a class, averaged over all blocks, (B, rows, columns).

    Negative values speak against the class.

    With LibraGrad's gradients (attention weights as constants) each block's map adds up to the logit but for biases.
    Blocks of later stages are enlarged to the finest grid, each cell's share divided among its parts.

    Args:
        model: Any timm model whose blocks give grids.
        images: (B, C, H, W), normalised.
        classes: (B,) or a single one.
        pruned: Use LibraGrad's gradients.

    Raises:
        UserError: no block gives a grid, or there is no such class.
    """
    size = (images.shape[-2], images.shape[-1])
    with explainable(model) as module, torch.enable_grad():
        plan = FeatureBackbone(module, size).plan
        kept: dict[str, Any] = {}
        handles = [keep_output(module, name, kept) for name in block_names(module)]
        try:
            with PrunedGradients("values") if pruned else nullcontext():
                logits = run(module, _tracked(module, images))
        finally:
            for handle in handles:
                handle.remove()
        outputs = {name: last_tensor(kept[name]) for name in plan.blocks if name in kept}
        if not outputs:
            raise UserError(f"{model_name(module)} has no blocks that give a grid each: use integrated-gradients.")
        gradients = torch.autograd.grad(logits, list(outputs.values()), _one_hot(logits, classes), allow_unused=True)
    hints = Hints(plan.channels_last, (plan.last[1], plan.last[2]))
    maps = []
    for output, gradient in zip(outputs.values(), gradients, strict=True):
        grid = None if gradient is None else to_grid(output.detach() * gradient, size, plan.prefixes, hints)
        maps += [] if grid is None else [grid.sum(1)]
    return _averaged(maps)


def _tracked(module: nn.Module, images: Tensor) -> Tensor:
    return images.detach().to(next(module.parameters()).dtype).requires_grad_()


def _one_hot(logits: Tensor, classes: Tensor) -> Tensor:
    chosen = require_classes(classes, logits.shape[1], len(logits)).to(logits.device)
    return torch.zeros_like(logits).scatter(1, chosen[:, None], 1.0)


def _averaged(maps: list[Tensor]) -> Tensor:
    """Return the mean of maps (B, h, w) on the finest grid, where a cell's value is divided among its parts."""
    finest = max((one.shape[1:] for one in maps), key=lambda sides: sides[0] * sides[1])
    whole = torch.zeros_like(maps[0].new_zeros(len(maps[0]), *finest))
    for one in maps:
        share = one.shape[1] * one.shape[2] / (finest[0] * finest[1])
        whole = whole + F.interpolate(one[:, None], finest, mode="nearest")[:, 0] * share
    return whole / len(maps)
