"""Rules that choose the backbone, the crops and the length of a pre-training run, for any method.

"The paper" is EsViT (sections 4 and A, and the released runs). Its values are for a million images and batches of 512;
the rules scale them for fewer images and smaller machines.
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
from paucal.rules import training
from paucal.rules.resolve import Choice, DataAndMachine, Rule, rules_by_name
from paucal.rules.training import (
    SMALL_SIDE,
    expected_side,
    hflip,
    model_of_initial_weights,
    normalise_for_initial_weights,
    small_img_size,
)

PAPER_REASON = "EsViT's value"
DEIT_AREAS_REASON = "timm's areas for all crops, as in EsViT's program"
ALIKE_AREAS_REASON = "the areas in LeJEPA's README"
PAPER_SIDE, PAPER_LOCAL_SIDE = 224, 96  # sides of global and local crops in pixels
PAPER_IMAGES, PAPER_EPOCHS = 1_281_167, 300
# Constructor arguments of vit_mini and number of epochs for the built-in digits on a CPU.
QUICK_MODEL_ARGS, QUICK_EPOCHS = ("embed_dim=64", "depth=3", "num_heads=2"), 12
CPU_VIEWS = 150_000  # images seen in a run on a CPU (epochs times images): about an hour with a small model
Sides = Sequence[int] | None


def model(facts: DataAndMachine, img_size: Sides) -> Choice:
    """Choose the model of the initial weights; from scratch, a small backbone for small images, else EsViT's Swin-T."""
    if model_of_weights := model_of_initial_weights(facts):
        return model_of_weights
    side = expected_side(facts, img_size)
    if side <= SMALL_SIDE:
        return "vit_mini", f"images of {side} pixels: a small transformer with a convolutional stem"
    return "swin_tiny_patch4_window7_224", "EsViT's main backbone"


def model_args(facts: DataAndMachine, model: str | None, device: str | None) -> Choice:
    """Choose the constructor arguments of the initial weights; for the digits on a CPU, arguments of a small model."""
    if facts.initial_weights is None and model == "vit_mini" and facts.hinted_epochs and device == "cpu":
        return list(QUICK_MODEL_ARGS), "a first result on this data set in about two minutes"
    return training.model_args(facts, model)


def local_crops(local_size: Sides, device: str | None) -> Choice:
    """Choose the paper's eight local crops, divided among the sizes in `local_size`; 4 on a CPU if no size is given."""
    if local_size:
        return [8 // len(local_size)] * len(local_size), "eight in total, as in the EsViT paper"
    if device == "cpu":
        return [4], "half of the EsViT paper's eight, for training on a CPU"
    return [8], PAPER_REASON


def local_size(img_size: Sequence[int], local_crops: Sides) -> Choice:
    """Choose 96 pixels for global crops of 224, as in the paper; else half of small sides, or 96/224 of large sides."""
    side, groups = min(img_size), len(local_crops or [0])
    if side == PAPER_SIDE:
        return [PAPER_LOCAL_SIDE] * groups, PAPER_REASON
    step = 16 if side > SMALL_SIDE else 4
    local_side = max(step, round(side * (0.5 if side <= SMALL_SIDE else PAPER_LOCAL_SIDE / PAPER_SIDE) / step) * step)
    return [local_side] * groups, f"about half of the global crops' {side} pixels"


def global_scale(local_crops: Sides, pipeline: str | None) -> Choice:
    """Choose the areas published with the augmentation pipeline; a wider range if there are no local crops."""
    if pipeline == "deit":
        return list(DEIT_SCALE), DEIT_AREAS_REASON
    if pipeline == "alike":
        if sum(local_crops or []):
            return list(ALIKE_GLOBAL_SCALE), ALIKE_AREAS_REASON
        return [0.08, 1.0], "the areas of LeJEPA's minimal example, which has no local crops"
    if not sum(local_crops or []):
        return [0.14, 1.0], "what EsViT's program advises without local crops"
    return list(GLOBAL_SCALE), PAPER_REASON


def local_scale(img_size: Sequence[int], pipeline: str | None) -> Choice:
    """Choose the areas published with the augmentation pipeline; larger areas for small images."""
    if pipeline == "deit":
        return list(DEIT_SCALE), DEIT_AREAS_REASON
    if min(img_size) <= SMALL_SIDE:
        return [0.2, 0.5], "EsViT's smallest crop, a twentieth of the image, shows too little of a small image"
    return (list(ALIKE_LOCAL_SCALE), ALIKE_AREAS_REASON) if pipeline == "alike" else (list(LOCAL_SCALE), PAPER_REASON)


def blur(img_size: Sequence[int]) -> Choice:
    """Choose the paper's blur radii, in proportion to the side of the images."""
    scale = min(img_size) / PAPER_SIDE
    radii = [round(radius * scale, 3) for radius in BLUR]
    return radii, f"EsViT's {BLUR[0]:g} to {BLUR[1]:g} at 224 pixels, in proportion to the side"


def batch_size(facts: DataAndMachine, accumulate: int, processes: int) -> Choice:
    """Choose a power of two that gives at least 10 steps per epoch, if possible; at most 64 images, as in the paper."""
    device_images = facts.n_train // (processes * accumulate)
    size = max(2, min(2 ** int(math.log2(max(device_images / 10, 16))), 64, device_images))
    return size, f"{facts.n_train} images: at least 10 steps per epoch if possible, at most 64 images per device"


def epochs(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose the paper's 300 epochs; fewer epochs on a CPU, or if there are more images than in the paper."""
    if facts.n_train > PAPER_IMAGES:
        return max(1, round(PAPER_EPOCHS * PAPER_IMAGES / facts.n_train)), "as many images seen as EsViT's 300 epochs"
    if facts.hinted_epochs:
        return QUICK_EPOCHS, "enough for a first result on this data set"
    if device == "cpu":
        n_epochs = max(10, min(PAPER_EPOCHS, round(CPU_VIEWS / facts.n_train)))
        return n_epochs, f"short enough for a CPU; the EsViT paper's {PAPER_EPOCHS} are better"
    return PAPER_EPOCHS, PAPER_REASON


RULES: dict[str, Rule] = {
    **rules_by_name((model, model_args)),
    "img_size": lambda facts: small_img_size(facts) or ([PAPER_SIDE], PAPER_REASON),
    "pipeline": lambda: ("dino", PAPER_REASON),
    **rules_by_name((local_crops, local_size, global_scale, local_scale, blur, hflip)),
    "normalise": lambda facts: (
        normalise_for_initial_weights(facts) or ("computed", "mean and standard deviation of these images")
    ),
    **rules_by_name((batch_size, epochs)),
}
