"""Grad-CAM and integrated gradients for any model, through captum (the extra `explain`)."""

from typing import Any

import torch
from torch import Tensor, nn

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.forward_hooks import block_names
from paucal.backbones.layout import Hints, last_tensor, read_layout
from paucal.backbones.probe import Plan, model_name
from paucal.explain.prepared import explainable, require_classes, run
from paucal.types import UserError

STEPS = 32  # of the way from the mean colour to the image


def integrated_gradients(model: nn.Module, images: Tensor, classes: Tensor, steps: int = STEPS) -> Tensor:
    """Return integrated gradients for a class, (B, H, W) per pixel, channels added up; negative ones speak against.

    Sundararajan et al. 2017. The way begins at 0, the mean colour of the training images once normalised; the sum over
    an image is nearly the difference between its logit and that of the mean colour.

    Args:
        model: Any classifier.
        images: (B, C, H, W), normalised.
        classes: (B,) or a single one.
        steps: Points on the way.

    Raises:
        UserError: captum is not installed, or there is no such class.
    """
    captum = _captum()
    with explainable(model) as module, torch.enable_grad():
        given = images.detach().to(next(module.parameters()).dtype)
        chosen = _chosen(module, given, classes)
        method = captum.IntegratedGradients(lambda batch: run(module, batch))
        found = method.attribute(given, target=chosen, n_steps=steps, internal_batch_size=max(len(given), steps))
    return found.detach().sum(1)


def grad_cam(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Return Grad-CAM for a class, (B, rows, columns), not below 0.

    Selvaraju et al. 2017: the channels of a grid, weighted with their mean gradients. The grid is the last one of a
    convolutional network or a Swin; where a class token reads the cells in the last block, it is what enters that.

    Args:
        model: Any timm model with a grid.
        images: (B, C, H, W), normalised.
        classes: (B,) or a single one.

    Raises:
        UserError: captum is not installed, the model has no blocks that give a grid, or there is no such class.
    """
    captum = _captum()
    size = (images.shape[-2], images.shape[-1])
    with explainable(model) as module, torch.enable_grad():
        given = images.detach().to(next(module.parameters()).dtype).requires_grad_()
        chosen = _chosen(module, given, classes)
        layer = _GridLayer(module, FeatureBackbone(module, size).plan, size)
        try:
            method = captum.LayerGradCam(lambda batch: run(module, batch), layer.grid)
            return method.attribute(given, target=chosen, relu_attributions=True).detach()[:, 0]
        finally:
            layer.handle.remove()


class _GridLayer:
    """Lets a grid of cells pass through a module of its own, as (B, C, rows, columns), for captum to hook."""

    def __init__(self, module: nn.Module, plan: Plan, size: tuple[int, int]) -> None:
        blocks = [name for name in block_names(module) if name in plan.blocks]
        if not blocks:
            raise UserError(f"{model_name(module)} has no blocks that give a grid: use integrated-gradients.")
        self.plan, self.size, self.grid = plan, size, nn.Identity()
        name = blocks[-2] if plan.class_token and len(blocks) > 1 else blocks[-1]
        self.handle = module.get_submodule(name).register_forward_hook(self._through)

    def _through(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor:
        output = last_tensor(output)
        layout = read_layout(
            output.shape, self.size, self.plan.prefixes, Hints(self.plan.channels_last, self.plan.last[1:])
        )
        assert layout is not None
        if layout.kind == "nchw":
            return self.grid(output)
        if layout.kind == "nhwc":
            return self.grid(output.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        prefix, cells = output[:, : layout.prefix], output[:, layout.prefix :]
        passed = self.grid(cells.transpose(1, 2).unflatten(2, (layout.height, layout.width)))
        return torch.cat((prefix, passed.flatten(2).transpose(1, 2)), 1)


def _captum() -> Any:
    try:
        from captum import attr
    except ImportError as problem:
        raise UserError(
            "grad-cam and integrated-gradients need captum: install it with pip install 'paucal[explain]'."
        ) from problem
    return attr


@torch.no_grad()
def _chosen(module: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    logits = run(module, images[:1])
    return require_classes(classes, logits.shape[1], len(images)).to(images.device)
