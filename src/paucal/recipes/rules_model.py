"""How the model, the size of its images and its extra loss are chosen."""

from typing import Any

import timm

from paucal.objectives import default_weight
from paucal.recipes.facts import Facts
from paucal.recipes.model import backbone_shape
from paucal.recipes.published_dhvt import dhvt_variant
from paucal.recipes.settings import TrainSettings

Choice = tuple[Any, str]

SMALL = 64  # pixels up to which an image is "small": CIFAR-like recipes apply
PAPER = "the paper's value"
PAPER_PAIRS, PAPER_HIDDEN = 64, 512
MEASURED = "the transformer that learned most from few images"  # benchmarks/results/small_data_*.json


def model(facts: Facts, settings: TrainSettings) -> Choice:
    """The start's; from scratch the transformer that was best where it was measured (docs/which_model.md)."""
    if facts.start is not None and facts.start.model is not None:
        return facts.start.model, f"the model of {facts.start.where}"
    if facts.start is not None:
        return "swin_tiny_patch4_window7_224", "the DrLoc paper's backbone for fine-tuning"
    size = settings.img_size[0] if settings.img_size else facts.hinted_size or facts.median_side
    if (settings.recipe or "").startswith("dhvt"):
        return dhvt_variant(size, facts.n_classes)
    if size < 32:
        return "vit_mini", f"images of {size} pixels: a small transformer with a convolutional stem"
    if size <= SMALL:
        return "dhvt_mini", f"images of {size} pixels, from scratch: {MEASURED}"
    name, why = dhvt_variant(size, facts.n_classes)
    return name, f"{why}; from scratch {MEASURED}"


def model_args(facts: Facts, settings: TrainSettings) -> Choice:
    """Those of the start, so that its weights fit."""
    start = facts.start
    if start is None or not start.model_args or settings.model != start.model:
        return None, ""
    return list(start.model_args), f"those of {start.where}"


def img_size(facts: Facts, settings: TrainSettings) -> Choice:
    """The start's; else the images' own where they are small, else the size the backbone was designed for."""
    if facts.start is not None:
        size = facts.start.image_size
        return _sides(size or _native(settings)), f"what suits {facts.start.where}"
    if facts.hinted_size:
        return [facts.hinted_size], "what suits this data set"
    for side in (32, 64, 96):
        if facts.median_side <= side * 1.25:
            return [side], f"the images' shorter side is {facts.median_side} pixels (median)"
    return _sides(_native(settings)), "the size this backbone was designed for"


def _native(settings: TrainSettings) -> tuple[int, int]:
    config = timm.get_pretrained_cfg(settings.model or "", allow_unregistered=True)
    return (config.input_size[1], config.input_size[2]) if config else (224, 224)


def _sides(size: tuple[int, int]) -> list[int]:
    return [size[0]] if size[0] == size[1] else list(size)


def drop_path(facts: Facts, settings: TrainSettings) -> Choice:
    """The papers' 0.2 for Swin and 0.1 for DHVT; DrLoc's other backbones have none."""
    if (settings.model or "").startswith("swin"):
        return 0.2, "the paper's value for Swin"
    if (settings.model or "").startswith(("dhvt_tiny", "dhvt_small")):
        return 0.1, "the DHVT paper's value"
    return 0.0, "the paper's value for backbones other than Swin"


def drloc_weight(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's weight of the backbone's family, or its safest one."""
    return default_weight(settings.model or "")


def drloc_pairs(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's number of pairs, fewer on a grid that has few to offer."""
    rows, columns = backbone_shape(settings).grid
    cells = rows * columns
    if 2 * cells >= PAPER_PAIRS:
        return PAPER_PAIRS, PAPER
    return 2 * cells, f"two for each of the {cells} cells; the paper has {PAPER_PAIRS} on 49"


def drloc_hidden(facts: Facts, settings: TrainSettings) -> Choice:
    """The paper's width, narrower for a narrow backbone."""
    dim = backbone_shape(settings).dim
    if 2 * dim >= PAPER_HIDDEN:
        return PAPER_HIDDEN, PAPER
    return 2 * dim, f"twice the {dim} channels of the grid; the paper has {PAPER_HIDDEN} for 384 and more"
