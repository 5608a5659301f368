"""Token labeling's protocols (Jiang et al., NeurIPS 2021, table 1 of the supplement), completed from its program."""

from typing import Any

from paucal.recipes.recipe import Recipe

_SOURCE = "arXiv:2104.10858, supplement table 1"
_COST = "310 epochs at 224 pixels with 1024 images a step; the paper used eight V100"
# A cosine of 300 epochs, and ten more at its floor, which the program calls the cool-down.
_COMMON: dict[str, Any] = {
    "img_size": [224],
    "epochs": 310,
    "schedule_epochs": 300,
    "batch_size": 128,
    "warmup_epochs": 5.0,
    "min_lr": 1e-5,
    "weight_decay": 0.05,
    "clip": 0.0,
    "average": 0.99992,
    "label_smoothing": 0.1,
    "drop_path": 0.1,
    "crop": "random-resized",
    "crop_scale": 0.08,
    "hflip": 0.5,
    "rand_augment": "rand-m9-mstd0.5-inc1",
    "erase": 0.25,
    "mixup": 0.0,
    "cutmix": 0.0,
    "normalise": "imagenet",
}
_DENSE = {**_COMMON, "model": "lvvit_s", "method": "token-labeling"}
_TUNED = {
    **_DENSE,
    "img_size": [384],
    "epochs": 30,
    "schedule_epochs": 30,
    "batch_size": 64,
    "lr": 5e-6,
    "min_lr": 5e-6,
    "weight_decay": 1e-8,
}
_SCORES = "ImageNet-1K: LV-ViT-T 79.1, S 83.3, M 84.0 at 224 pixels"

RECIPES: dict[str, Recipe] = {
    "token-labeling": Recipe(
        "LV-ViT with a teacher's label on every token, the paper's weights of the loss",
        _SOURCE,
        _COST,
        _SCORES,
        _DENSE,
        8e-4,
    ),
    "token-labeling-reference": Recipe(
        "the same as the published program does it: its weights, and its mistakes in looking labels up and smoothing",
        "the paper's program",
        _COST,
        _SCORES,
        {**_DENSE, "token_preset": "reference"},
        8e-4,
    ),
    "token-labeling-high-resolution": Recipe(
        "a trained LV-ViT tuned at 384 pixels with its label maps; give --init",
        "arXiv:2104.10858, supplement section 1, and the program",
        "30 epochs at 384 pixels",
        "ImageNet-1K: LV-ViT-S 84.4, M 85.4 at 384 pixels",
        _TUNED,
    ),
    "relabel": Recipe(
        "LV-ViT without token labels: a teacher's label for the part of the image that is seen (ReLabel)",
        _SOURCE,
        _COST,
        "ImageNet-1K, supplement table 2",
        {**_COMMON, "model": "lvvit_s_plain", "method": "relabel"},
        5e-4,
    ),
    "lvvit-standard": Recipe(
        "LV-ViT's architecture with plain labels and mixup",
        _SOURCE,
        _COST,
        "ImageNet-1K, supplement table 2",
        {**_COMMON, "model": "lvvit_s_plain", "method": "supervised", "mixup": 0.8},
        5e-4,
    ),
}
