"""Rules for the backbone, the crops and the length of a pre-training run, for any method.

Published values (EsViT, sections 4 and A; its released runs) hold for a million images and batches of 512. For smaller
data or a smaller machine, a named rule scales the value.
"""

import math
from collections.abc import Sequence

from paucal.data.views.multi_crop import (
    ALIKE_GLOBAL_SCALE,
    ALIKE_LOCAL_SCALE,
    BLUR,
    DEIT_SCALE,
    GLOBAL_SCALE,
    LOCAL_SCALE,
)
from paucal.rules.facts import DataAndMachine
from paucal.rules.images import hflip, normalise_like_start
from paucal.rules.model import SMALL, expected_side, model_args, model_of_start, small_img_size
from paucal.rules.resolve import Choice

PAPER = "EsViT's value"
DEIT_AREAS = "timm's areas for all crops, as in EsViT's program"
ALIKE_AREAS = "the areas of LeJEPA's README"
PAPER_SIDE, PAPER_LOCAL = 224, 96
PAPER_IMAGES, PAPER_EPOCHS = 1_281_167, 300
QUICK_MODEL, QUICK_EPOCHS = ("embed_dim=64", "depth=3", "num_heads=2"), 12
CPU_VIEWS = 150_000  # images seen in a run on a CPU: an hour or so with a small model
Sides = Sequence[int] | None


def model(facts: DataAndMachine, img_size: Sides) -> Choice:
    """The model of the initial weights; else a small backbone for small images, or the paper's backbone."""
    if start_model := model_of_start(facts):
        return start_model
    side = expected_side(facts, img_size)
    if side <= SMALL:
        return "vit_mini", f"images of {side} pixels: a small transformer with a convolutional stem"
    return "swin_tiny_patch4_window7_224", "EsViT's main backbone"


def _model_args(facts: DataAndMachine, model: str | None, device: str | None) -> Choice:
    """The arguments of the initial weights' model; for the built-in images on a CPU, those of a quick model."""
    if facts.start is None and model == "vit_mini" and facts.hinted_epochs and device == "cpu":
        return list(QUICK_MODEL), "a first result on this data set in about two minutes"
    return model_args(facts, model)


_model_args.__name__ = "model_args"


def img_size(facts: DataAndMachine) -> Choice:
    """The images' own size if they are small, else the paper's size."""
    return small_img_size(facts) or ([PAPER_SIDE], PAPER)


def pipeline() -> Choice:
    """The paper's augmentation pipeline."""
    return "dino", PAPER


def local_crops(local_size: Sides, device: str | None) -> Choice:
    """The paper's eight; four on a CPU."""
    if local_size:
        return [8 // len(local_size)] * len(local_size), "eight in all, as in the paper"
    if device == "cpu":
        return [4], "half of the paper's eight, for training on a CPU"
    return [8], PAPER


def local_size(img_size: Sides, local_crops: Sides) -> Choice:
    """The paper's 96 pixels for 224; about half the side of small images."""
    side, groups = min(img_size or [PAPER_SIDE]), len(local_crops or [0])
    if side == PAPER_SIDE:
        return [PAPER_LOCAL] * groups, PAPER
    step = 16 if side > SMALL else 4
    local_side = max(step, round(side * (0.5 if side <= SMALL else PAPER_LOCAL / PAPER_SIDE) / step) * step)
    return [local_side] * groups, f"about half of the global crops' {side} pixels"


def global_scale(local_crops: Sides, pipeline: str | None) -> Choice:
    """The areas that were published with the pipeline; wider without local crops, as in the authors' code."""
    if pipeline == "deit":
        return list(DEIT_SCALE), DEIT_AREAS
    if pipeline == "alike":
        if sum(local_crops or []):
            return list(ALIKE_GLOBAL_SCALE), ALIKE_AREAS
        return [0.08, 1.0], "the areas of LeJEPA's minimal example, which has no local crops"
    if not sum(local_crops or []):
        return [0.14, 1.0], "what EsViT's program advises without local crops"
    return list(GLOBAL_SCALE), PAPER


def local_scale(img_size: Sides, pipeline: str | None) -> Choice:
    """The areas published with the pipeline; larger in small images, where a twentieth shows nothing."""
    if pipeline == "deit":
        return list(DEIT_SCALE), DEIT_AREAS
    if min(img_size or [PAPER_SIDE]) <= SMALL:
        return [0.2, 0.5], "a twentieth of a small image shows nothing"
    return (list(ALIKE_LOCAL_SCALE), ALIKE_AREAS) if pipeline == "alike" else (list(LOCAL_SCALE), PAPER)


def blur(img_size: Sides) -> Choice:
    """The paper's radii at its size, in proportion at others."""
    share = min(img_size or [PAPER_SIDE]) / PAPER_SIDE
    radii = [round(radius * share, 3) for radius in BLUR]
    return radii, f"EsViT's {BLUR[0]:g} to {BLUR[1]:g} at 224 pixels, in proportion"


def normalise(facts: DataAndMachine) -> Choice:
    """The statistics used for training the initial weights; from scratch those of the data."""
    return normalise_like_start(facts) or ("computed", "mean and deviation of these images")


def batch_size(facts: DataAndMachine, accumulate: int, processes: int) -> Choice:
    """At least ten steps per epoch, and no more than the paper's images per device."""
    share = facts.n_train // (processes * accumulate)
    size = max(2, min(2 ** int(math.log2(max(share / 10, 16))), 64, share))
    return size, f"{facts.n_train} images: at least 10 steps per epoch if possible, at most 64 images per device"


def epochs(facts: DataAndMachine, device: str | None) -> Choice:
    """The paper's 300 epochs, fewer on a CPU; for larger sets as many images seen as in the paper."""
    if facts.n_train > PAPER_IMAGES:
        return max(1, round(PAPER_EPOCHS * PAPER_IMAGES / facts.n_train)), "as many images seen as EsViT's 300 epochs"
    if facts.hinted_epochs:
        return QUICK_EPOCHS, "a first result on this data set"
    if device == "cpu":
        n_epochs = max(10, min(PAPER_EPOCHS, round(CPU_VIEWS / facts.n_train)))
        return n_epochs, f"affordable on a CPU; the paper's {PAPER_EPOCHS} are better"
    return PAPER_EPOCHS, PAPER


CROPS = (
    *(model, _model_args, img_size, pipeline, local_crops, local_size, global_scale, local_scale, blur, hflip),
    normalise,
)
RULES = (*CROPS, batch_size, epochs)
