"""Measures the size and cost of models for the table of models, on the meta device, which computes no values."""

import warnings
from typing import Any

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from paucal.backbones.families.common.contract import PAPERS
from paucal.backbones.features import FeatureBackbone
from paucal.backbones.probe import make_dummy_images
from paucal.models.table import TIMM, ListedModel
from paucal.types import UserError


def source_of(name: str) -> str:
    """Return the paper of a model that is implemented in paucal; "timm" for a model of timm."""
    return PAPERS.get(name.partition(".")[0], TIMM)


def measure(name: str, drloc_weight: float) -> ListedModel:
    """Measure the model with a timm name; the result also stores `drloc_weight`.

    Example:
        >>> import paucal.backbones
        >>> measured = measure("vit_mini", 0.1)
        >>> measured.parameters, round(measured.macs / 1e6), measured.grid
        (1221928, 76, (8, 8))
    """
    with warnings.catch_warnings(action="ignore"):
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
        # The input requires gradients because counting fails for PiT and CaiT otherwise.
        images, counter = make_dummy_images(model, (height, width)).requires_grad_(), FlopCounterMode(display=False)
        try:
            with counter:
                model(images)
            macs = counter.get_total_flops() // 2
        except (RuntimeError, NotImplementedError, TypeError):
            macs = None  # counting failed
    return ListedModel(parameters, macs, (height, width), grid, dim, source_of(name), drloc_weight)
