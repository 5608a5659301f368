"""Recipes of token labeling (Jiang et al., NeurIPS 2021), from table 1 of the supplement and from the code."""

from typing import Any

from paucal.recipes.recipe import DEIT_SETTINGS, Recipe, Variant, without

_SOURCE = "arXiv:2104.10858, supplement table 1"
_COST = "310 epochs at 224 pixels with 1024 images per step; the paper used eight V100"
# A cosine schedule over 300 epochs, then ten epochs at the lowest rate, which the authors' code calls the cool-down.
_COMMON_SETTINGS: dict[str, Any] = {
    **DEIT_SETTINGS,
    "img_size": [224],
    "epochs": 310,
    "schedule_epochs": 300,
    "batch_size": 128,
    "warmup_epochs": 5.0,
    "warmup_lr": 1e-6,
    "min_lr": 1e-5,
    "clip": 0.0,
    "average": 0.99992,
    "drop_path": 0.1,
    "crop": "random-resized",
    "crop_scale": 0.08,
    "mixup": 0.0,
    "cutmix": 0.0,
}
_LVVIT_SETTINGS = {**_COMMON_SETTINGS, "model": "lvvit_s", "method": "token-labeling"}
# CaiT as in table 5. timm's CaiT has one rate of stochastic depth for all blocks, and includes layer scale and class
# attention. The table says only that mixup, CutMix and distillation are used. The mixup alpha is taken from table 1,
# and the CutMix alpha from the authors (issue 6). The distillation is that of CaiT's authors; its teacher is the
# RegNetY-16GF of their DeiT. CaiT has no distillation token, so its class token learns both the labels and the
# teacher's predicted classes.
_CAIT_SETTINGS = {
    **_COMMON_SETTINGS,
    "model": "cait_s36_384",
    "method": "supervised",
    "add": ["distillation"],
    "teacher": "regnety_160.deit_in1k",
    "epochs": 400,
    "schedule_epochs": 400,
    "drop_path": 0.2,
    "mixup": 0.8,
    "cutmix": 1.0,
}
# Fine-tuning of a trained model at a larger image size (section 1 of the supplement). The initial weights determine the
# normalisation.
_HIGH_RESOLUTION_SETTINGS: dict[str, Any] = {
    "img_size": [384],
    "epochs": 30,
    "schedule_epochs": 30,
    "batch_size": 64,
    "lr": 5e-6,
    "min_lr": 5e-6,
    "weight_decay": 1e-8,
}


# Settings of the larger models. The other values, from table 1, are for LV-ViT-S, and also apply to LV-ViT-T according
# to an author (issue 23 of the code).
_LARGER_MODEL_SETTINGS = {
    "lvvit_m": Variant({"drop_path": 0.2}),
    "lvvit_l": Variant({"drop_path": 0.3, "rand_augment": "rand-m9-n3-mstd0.5-inc1"}, lr_per_512=5e-4),
}
# Fine-tuning uses the learning rate of `_HIGH_RESOLUTION_SETTINGS` for all sizes.
_LARGER_MODEL_TUNING_SETTINGS = {name: Variant(variant.settings) for name, variant in _LARGER_MODEL_SETTINGS.items()}
_SCORES = "ImageNet-1K: LV-ViT-T 79.1, S 83.3, M 84.0 at 224 pixels"
_CAIT_SOURCE = (
    "arXiv:2104.10858, supplement table 5; the distillation is DeiT's (arXiv:2012.12877), and values that the table "
    "does not give are those of lvvit-standard"
)

RECIPES: dict[str, Recipe] = {
    "token-labeling": Recipe(
        "LV-ViT with a teacher's label for every token, and the paper's loss weights",
        _SOURCE,
        _COST,
        _SCORES,
        _LVVIT_SETTINGS,
        8e-4,
        _LARGER_MODEL_SETTINGS,
    ),
    "token-labeling-reference": Recipe(
        "the same as in the published code: its loss weights, and its errors in label lookup and smoothing",
        "the paper's code",
        _COST,
        _SCORES,
        {**_LVVIT_SETTINGS, "token_preset": "reference"},
        8e-4,
        _LARGER_MODEL_SETTINGS,
    ),
    "token-labeling-high-resolution": Recipe(
        "fine-tuning of a trained LV-ViT at 384 pixels, or at --img-size 448 or 512, with its label maps; give --init",
        "arXiv:2104.10858, supplement section 1, and the code",
        "30 epochs at 384 pixels and more with 512 images per step; the paper used eight V100, 32 for L at 448",
        "ImageNet-1K: LV-ViT-S 84.4, M 85.4 at 384 pixels, M 85.5, L 86.2 at 448, L 86.4 at 512",
        {**without(_LVVIT_SETTINGS, "normalise"), **_HIGH_RESOLUTION_SETTINGS},
        variants=_LARGER_MODEL_TUNING_SETTINGS,
        initial_weights=(
            "an LV-ViT that was trained at 224 pixels: give --init a run, such as one of --recipe token-labeling, or a "
            "weights file"
        ),
    ),
    "relabel": Recipe(
        "LV-ViT without token labels: a teacher's label for the visible part of the image (ReLabel)",
        _SOURCE,
        _COST,
        "ImageNet-1K, supplement table 2",
        {**_COMMON_SETTINGS, "model": "lvvit_s_plain", "method": "relabel"},
        5e-4,
        _LARGER_MODEL_SETTINGS,
    ),
    "lvvit-standard": Recipe(
        "LV-ViT's architecture with plain labels and mixup",
        _SOURCE,
        _COST,
        "ImageNet-1K, supplement table 2",
        {**_COMMON_SETTINGS, "model": "lvvit_s_plain", "method": "supervised", "mixup": 0.8},
        5e-4,
        _LARGER_MODEL_SETTINGS,
    ),
    "cait": Recipe(
        "CaiT-S36 as LV-ViT's authors compare it with their model, with hard distillation from a RegNetY-16GF",
        _CAIT_SOURCE,
        "400 epochs at 224 pixels with 1024 images per step, and a teacher of 84 M parameters on every image",
        "no score is published at 224 pixels; fine-tuned at 384 pixels: 85.4 on ImageNet-1K",
        _CAIT_SETTINGS,
        5e-4,
    ),
    "cait-high-resolution": Recipe(
        "fine-tuning of a trained CaiT at 384 pixels, as for LV-ViT, with the same distillation; give --init",
        f"{_CAIT_SOURCE}; learning rate, weight decay and epochs are LV-ViT's (section 1), since CaiT's are not given",
        "30 epochs at 384 pixels with 512 images per step, and a teacher of 84 M parameters on every image",
        "ImageNet-1K: CaiT-S36 85.4, supplement table 5",
        {**without(_CAIT_SETTINGS, "normalise"), **_HIGH_RESOLUTION_SETTINGS},
        initial_weights=(
            "a CaiT that was trained at 224 pixels: give --init a run, such as one of --recipe cait, or a weights file"
        ),
    ),
}


def lvvit_drop_path(model: str) -> float:
    """Return the published stochastic depth rate of an LV-ViT.

    Example:
        >>> [lvvit_drop_path(name) for name in ("lvvit_t", "lvvit_s", "lvvit_m", "lvvit_l")]
        [0.1, 0.1, 0.2, 0.3]
    """
    variant = _LARGER_MODEL_SETTINGS.get(model[: len("lvvit_m")], Variant({}))
    return variant.settings.get("drop_path", _COMMON_SETTINGS["drop_path"])
