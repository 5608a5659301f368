"""Recipes of DrLoc (Liu et al., NeurIPS 2021), as in the paper and as in its code.

On ImageNet-1K (supplement, table 7), the paper trains Swin and T2T-ViT with the default settings of their authors'
code, with and without the DrLoc loss. The recipes `swin-imagenet` and `t2t-imagenet` have these settings.
"""

from functools import partial
from typing import Any

from paucal.recipes.recipe import DEIT_SETTINGS, Recipe, without

# Section 4 and appendix of the paper (arXiv:2106.03746); values that the paper does not give are from its code.
_PAPER_SETTINGS: dict[str, Any] = {
    **DEIT_SETTINGS,
    "model": "swin_tiny_patch4_window7_224",
    "img_size": [224],
    "method": "drloc",
    "drloc_preset": "paper",
    "epochs": 100,
    "schedule_epochs": 100,
    "batch_size": 128,
    "warmup_epochs": 20.0,
    "clip": 5.0,
    "average": 0.0,
    "crop": "random-resized",
    "crop_scale": 0.08,
}
# In the code, the 100 epochs are the first third of a cosine schedule over 300 epochs, and the loss differs from the
# paper's formula.
_REFERENCE_SETTINGS = {**_PAPER_SETTINGS, "drloc_preset": "reference", "schedule_epochs": 300}
# DrLoc's code is based on Swin's code and has the same settings, but Swin trains for all 300 epochs of the schedule.
_SWIN_SETTINGS: dict[str, Any] = {
    **without(_PAPER_SETTINGS, "drloc_preset"),
    "method": "supervised",
    "epochs": 300,
    "schedule_epochs": 300,
    "drop_path": 0.2,
}
# A cosine schedule over 300 epochs, then ten epochs at the lowest rate, which the authors' code calls the cool-down.
_T2T_SETTINGS: dict[str, Any] = {
    **_SWIN_SETTINGS,
    "model": "t2t_vit_14",
    "epochs": 310,
    "batch_size": 64,
    "warmup_epochs": 10.0,
    "warmup_lr": 1e-6,
    "min_lr": 1e-5,
    "clip": 0.0,
    "average": 0.99996,
    "drop_path": 0.1,
}
# The recipes leave out "normalise", since the initial weights of fine-tuning determine the normalisation.
_FINE_TUNING_SETTINGS = {"init": "timm", "warmup_epochs": 10.0}
_FINE_TUNING_WEIGHTS = (
    "ImageNet-1k weights: remove --init to use timm's weights, or give --init a run or a weights file"
)
_SCRATCH_SCORES = "Swin-T, table 4: CIFAR-10 83.89 (59.47 without the loss), CIFAR-100 66.23 (53.28), Flowers102 39.37"
_FINE_TUNING_SCORES = (
    "Swin-T, table 5: CIFAR-10 98.37 (97.95 without the loss), CIFAR-100 88.40 (88.22), Flowers102 98.21"
)
_SWIN_SCORES = "ImageNet-1K: Swin-T 81.3 (its authors), 81.2 in DrLoc's run and 81.33 with DrLoc's loss, table 7"
_T2T_SCORES = "ImageNet-1K: T2T-ViT-14 81.5 (its authors), 80.7 in DrLoc's run and 80.85 with DrLoc's loss, table 7"
_COST = "100 epochs at 224 pixels; the paper used eight V100 with 128 images each (--devices 8)"


_recipe = partial(Recipe, imagenet_crop=True)  # the paper's code evaluates the central 224 of 256 pixels

RECIPES: dict[str, Recipe] = {
    "drloc-scratch": _recipe(
        "the DrLoc paper's training from scratch",
        "arXiv:2106.03746, section 4",
        _COST,
        _SCRATCH_SCORES,
        _PAPER_SETTINGS,
        5e-4,
    ),
    "drloc-scratch-reference": _recipe(
        "the same as in the published code: its version of the loss, the first third of a 300-epoch cosine schedule",
        "the paper's code",
        _COST,
        _SCRATCH_SCORES,
        _REFERENCE_SETTINGS,
        5e-4,
    ),
    "drloc-finetune": _recipe(
        "the DrLoc paper's fine-tuning from ImageNet-1K weights",
        "arXiv:2106.03746, section 4",
        _COST,
        _FINE_TUNING_SCORES,
        {**without(_PAPER_SETTINGS, "normalise"), **_FINE_TUNING_SETTINGS},
        2.5e-4,
        initial_weights=_FINE_TUNING_WEIGHTS,
        imagenet_alone=True,
    ),
    "drloc-finetune-reference": _recipe(
        "the same with the published code's version of the loss (the code itself cannot fine-tune)",
        "the paper's protocol, its code's loss",
        _COST,
        _FINE_TUNING_SCORES,
        {**without(_REFERENCE_SETTINGS, "normalise"), **_FINE_TUNING_SETTINGS, "schedule_epochs": 100},
        2.5e-4,
        initial_weights=_FINE_TUNING_WEIGHTS,
        imagenet_alone=True,
    ),
    "swin-imagenet": Recipe(
        "Swin-T from scratch on ImageNet-1K, as its authors trained it; with DrLoc's loss: --method drloc",
        "the code of Swin (arXiv:2103.14030), which DrLoc's code derives from",
        "300 epochs at 224 pixels with 1024 images per step, on eight GPUs with 128 each (--devices 8)",
        _SWIN_SCORES,
        _SWIN_SETTINGS,
        5e-4,
    ),
    "t2t-imagenet": Recipe(
        "T2T-ViT-14 from scratch on ImageNet-1K, as its authors trained it; with DrLoc's loss: --method drloc",
        "the code of T2T-ViT (arXiv:2101.11986)",
        "310 epochs at 224 pixels with 512 images per step, on eight GPUs with 64 each (--devices 8)",
        _T2T_SCORES,
        _T2T_SETTINGS,
        5e-4,
    ),
}
