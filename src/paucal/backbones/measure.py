"""How large a model is and how much it computes, found without computing it."""

import warnings
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from paucal.backbones.features import FeatureBackbone
from paucal.backbones.probe import probe_images
from paucal.types import UserError


@dataclass(frozen=True)
class Measured:
    """A model's size and cost at its own image size and number of classes.

    Attributes:
        parameters: all of them, frozen ones too.
        macs: multiply-adds of convolutions, linear layers and attention products, for one image; papers print this
            number as FLOPs. None where the model cannot be counted.
        image_size: (height, width) in pixels it was counted at.
        grid: (rows, columns) of the last grid; None where it keeps none.
        dim: channels of the last grid; None where it keeps none.
    """

    parameters: int
    macs: int | None
    image_size: tuple[int, int]
    grid: tuple[int, int] | None
    dim: int | None


def measure(name: str) -> Measured:
    """Build a registered model on the meta device, where nothing is computed, and count.

    Example:
        >>> import paucal.backbones
        >>> measured = measure("vit_mini")
        >>> measured.parameters, round(measured.macs / 1e6), measured.grid
        (1221928, 76, (8, 8))
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.device("meta"):
            model = timm.create_model(name).eval()
        config: Any = model.pretrained_cfg
        height, width = (int(side) for side in config["input_size"][1:])
        try:
            backbone = FeatureBackbone(model, (height, width))
            grid, dim = backbone.grid, backbone.dim
        except (UserError, RuntimeError, TypeError, ValueError, AttributeError):
            grid = dim = None
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return Measured(parameters, _count(model, (height, width)), (height, width), grid, dim)


def _count(model: torch.nn.Module, image_size: tuple[int, int]) -> int | None:
    # With gradients: PiT and CaiT cannot be counted without.
    images = probe_images(model, image_size).requires_grad_()
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            model(images)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return counter.get_total_flops() // 2
