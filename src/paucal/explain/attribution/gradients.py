"""Attribution methods based on gradients: gradient times feature, gradient rollout, Grad-CAM, integrated gradients.

Grad-CAM and integrated gradients use captum, which the extra `explain` installs.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.layout import LayoutHints, last_tensor, read_layout, to_grid
from paucal.backbones.probe import block_names, model_name, recorded_outputs
from paucal.explain.attention.reading import require_attention
from paucal.explain.attention.rollout import class_contributions, roll_out, run_with_blocks
from paucal.explain.attribution.pruning import PrunedGradients
from paucal.explain.prepared import (
    check_class_indices,
    compute_logits,
    one_hot_classes,
    prepare_for_hooks,
    require_classifier,
    with_gradient,
)
from paucal.types import UserError

STEPS = 32  # number of points of integrated gradients on the path from the mean colour to the image


def gradient_rollout(model: nn.Module, images: Tensor, classes: Tensor, pruned: bool = False) -> Tensor:
    """Return the gradient x attention rollout for a class, (B, rows, columns) on the first layer's patches, >= 0.

    Chefer et al. 2021, "Generic Attention-model Explainability": each layer adds the positive part of gradient times
    attention, averaged over heads, to the residual connection. Here, a single row is traced back instead of multiplying
    whole matrices, so that windowed attention (Swin) and patch merging are supported too. In a model without a class
    token, which averages its patch tokens, the rollout starts from the positive part of gradient times feature of the
    last patch tokens, whereas the original method would weight all patches equally. If `pruned` is True, the gradients
    are pruned as in LibraGrad.
    """
    with prepare_for_hooks(model) as module, torch.enable_grad():
        require_attention(module)
        require_classifier(module)
        tracked = with_gradient(module, images)
        with PrunedGradients() if pruned else nullcontext():
            recorded, outputs = run_with_blocks(module, tracked)
        one_hot = one_hot_classes(recorded.logits, classes)
        start = class_contributions(module, recorded, outputs, one_hot)
        gradients = recorded.gradients(one_hot)
    layers = [
        attention.with_weights((attention.weights.detach() * gradient).clamp(min=0).mean(2, keepdim=True))
        for attention, gradient in zip(recorded.maps, gradients, strict=True)
    ]
    return roll_out(layers, start)


def gradient_features(model: nn.Module, images: Tensor, classes: Tensor, pruned: bool = True) -> Tensor:
    """Return gradient times feature for a class, averaged over all blocks, (B, rows, columns).

    Negative values are evidence against the class. If `pruned` is True, the gradients are pruned as in LibraGrad, and
    attention weights are treated as constants. The map of each block then sums to the logit without the contributions
    of biases. Maps of later stages are enlarged to the finest grid, and each value is divided among the finer grid
    positions.
    """
    size = (images.shape[-2], images.shape[-1])
    with prepare_for_hooks(model) as module, torch.enable_grad():
        plan = FeatureBackbone(module, size).plan
        pruning = PrunedGradients("values") if pruned else nullcontext()
        with recorded_outputs(module, block_names(module)) as block_outputs, pruning:
            logits = compute_logits(module, with_gradient(module, images))
        outputs = {name: last_tensor(block_outputs[name]) for name in plan.blocks if name in block_outputs}
        if not outputs:
            raise UserError(f"{model_name(module)} has no blocks with feature maps: use integrated-gradients.")
        one_hot = one_hot_classes(logits, classes)
        gradients = torch.autograd.grad(logits, list(outputs.values()), one_hot, allow_unused=True)
    hints = LayoutHints(plan.channels_last, (plan.last_shape[1], plan.last_shape[2]))
    maps = []
    for output, gradient in zip(outputs.values(), gradients, strict=True):
        grid = None if gradient is None else to_grid(output.detach() * gradient, size, plan.prefixes, hints)
        maps += [] if grid is None else [grid.sum(1)]
    finest = max((values.shape[1:] for values in maps), key=lambda sides: sides[0] * sides[1])
    total = maps[0].new_zeros(len(maps[0]), *finest)
    for values in maps:
        fraction = values.shape[1] * values.shape[2] / (finest[0] * finest[1])
        total = total + F.interpolate(values[:, None], finest, mode="nearest")[:, 0] * fraction
    return total / len(maps)


def integrated_gradients(model: nn.Module, images: Tensor, classes: Tensor, steps: int = STEPS) -> Tensor:
    """Return integrated gradients for a class, (B, H, W), summed over channels (Sundararajan et al. 2017).

    Negative values are evidence against the class. The integration path starts at an image of zeros, which after
    normalisation is the mean colour of the training images. The sum over an image's map is approximately the logit of
    the image minus the logit of this uniform image.
    """
    captum = _import_captum()
    with prepare_for_hooks(model) as module, torch.enable_grad():
        inputs = images.detach().to(next(module.parameters()).dtype)
        indices = _class_indices(module, inputs, classes)
        method = captum.IntegratedGradients(lambda batch: compute_logits(module, batch))
        values = method.attribute(inputs, target=indices, n_steps=steps, internal_batch_size=max(len(inputs), steps))
    return values.detach().sum(1)


def grad_cam(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Return Grad-CAM for a class, (B, rows, columns), >= 0.

    Selvaraju et al. 2017: the positive part of the sum of a feature map's channels, weighted with their mean gradients.
    In a convolutional network or a Swin, the last feature map is used. In a model with a class token, the input of the
    last block is used, since the class token attends to the patches in this block.
    """
    captum = _import_captum()
    size = (images.shape[-2], images.shape[-1])
    with prepare_for_hooks(model) as module, torch.enable_grad():
        inputs = with_gradient(module, images)
        indices = _class_indices(module, inputs, classes)
        with _grid_layer(module, size) as layer:
            method = captum.LayerGradCam(lambda batch: compute_logits(module, batch), layer)
            return method.attribute(inputs, target=indices, relu_attributions=True).detach()[:, 0]


@contextmanager
def _grid_layer(module: nn.Module, size: tuple[int, int]) -> Iterator[nn.Module]:
    """Yield an identity module that a block's output passes as (B, C, rows, columns), so that captum can hook it."""
    plan, grid = FeatureBackbone(module, size).plan, nn.Identity()
    blocks = [name for name in block_names(module) if name in plan.blocks]
    if not blocks:
        raise UserError(f"{model_name(module)} has no blocks with feature maps: use integrated-gradients.")

    def pass_as_grid(block: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
        output, hints = last_tensor(output), LayoutHints(plan.channels_last, plan.last_shape[1:])
        layout = read_layout(output.shape, size, plan.prefixes, hints)
        assert layout is not None
        if layout.kind == "nchw":
            return grid(output)
        if layout.kind == "nhwc":
            return grid(output.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        prefix, cells = output[:, : layout.prefix], output[:, layout.prefix :]
        new_grid = grid(cells.transpose(1, 2).unflatten(2, (layout.height, layout.width)))
        return torch.cat((prefix, new_grid.flatten(2).transpose(1, 2)), 1)

    name = blocks[-2] if plan.class_token and len(blocks) > 1 else blocks[-1]
    handle = module.get_submodule(name).register_forward_hook(pass_as_grid)
    try:
        yield grid
    finally:
        handle.remove()


def _import_captum() -> Any:
    try:
        from captum import attr
    except ImportError as problem:
        raise UserError(
            "grad-cam and integrated-gradients need captum: install it with pip install 'paucal[explain]'."
        ) from problem
    return attr


@torch.no_grad()
def _class_indices(module: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    logits = compute_logits(module, images[:1])
    return check_class_indices(classes, logits.shape[1], len(images)).to(images.device)
