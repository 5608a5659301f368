"""Recipes of DHVT (Lu et al., NeurIPS 2022, arXiv 2210.05958), as in the supplement and as in the authors' code.

The supplement gives learning rates for its batch sizes; the code has a rate for 512 images and scales that rate in
proportion to the batch size. Paper and code use 1e-3 on CIFAR and DomainNet. Paper and code use 5e-4 on ImageNet, but
for different batch sizes. For fine-tuning with 256 images, the supplement has 5e-4 and the code 2.5e-4. The
augmentation is DeiT's: the supplement names most operations, and the code has all of them, including RandAugment and
repeated augmentation (every image three times in a row; not in fine-tuning). All recipes here use the code's
augmentation. Only the `-reference` recipes change the learning rate as the code does, once per epoch and one epoch
late. Paper and code report the best epoch on the test images; paucal also trains on all training images, but evaluates
the last epoch.

Two differences from the authors' code remain. Affine scales and head positions have no weight decay, and batch norm
statistics are synchronised over devices only with `--sync-bn` (the code always synchronises the statistics of the
patch embedding).
"""

from dataclasses import replace
from functools import partial
from typing import Any

from paucal.recipes.recipe import DEIT_SETTINGS, Recipe, without

_COMMON_SETTINGS: dict[str, Any] = {
    **DEIT_SETTINGS,
    "method": "supervised",
    "epochs": 300,
    "schedule_epochs": 300,
    "batch_size": 256,
    "warmup_lr": 1e-6,
    "min_lr": 1e-5,
    "clip": 0.0,
    "average": 0.0,  # the authors' code computes a moving average of the weights, but does not use it
    "drop_path": 0.1,
    "repeats": 3,
}
_CIFAR_SETTINGS = {
    **_COMMON_SETTINGS,
    "model": "dhvt_tiny_cifar_patch4",
    "img_size": [32],
    "warmup_epochs": 5.0,
    "crop": "padded",
}
_LARGE_IMAGE_SETTINGS: dict[str, Any] = {
    **_COMMON_SETTINGS,
    "img_size": [224],
    "crop": "random-resized",
    "crop_scale": 0.08,
}
_DOMAINNET_SETTINGS = {**_LARGE_IMAGE_SETTINGS, "model": "dhvt_tiny_domain_patch16", "warmup_epochs": 20.0}
_IMAGENET_SETTINGS = {**_LARGE_IMAGE_SETTINGS, "model": "dhvt_tiny_imagenet_patch16", "warmup_epochs": 10.0}
# Fine-tuning from ImageNet weights needs the ImageNet variant, whose attention heads differ from those of the DomainNet
# variant. "normalise" is left out, since the initial weights determine the normalisation.
_FINE_TUNING_SETTINGS = {
    **without(_IMAGENET_SETTINGS, "normalise"),
    "repeats": 1,
    "epochs": 100,
    "schedule_epochs": 100,
    "warmup_epochs": 2.0,
    "min_lr": 1e-6,
    "weight_decay": 1e-8,
}
_CODE_SCHEDULE_SETTINGS = {"schedule": "lagging"}

_SOURCE = "arXiv:2210.05958, supplement, with the augmentation of the code"
_CODE_SOURCE = "the paper's code"
_SCORES_CIFAR = "CIFAR-100, 32 pixels: DHVT-T 80.98 (plain ViT-T 67.59), DHVT-S 82.82, tables 2 and 4"
_SCORES_DOMAINNET = "DHVT-T: ClipArt 71.73, Painting 63.34, Sketch 66.60, Infograph 32.60, Real 81.31, table 7"
_SCORES_IMAGENET = "ImageNet-1K: DHVT-T 76.5, DHVT-S 82.3, table 9"
_SCORES_FINE_TUNING = (
    "DHVT-T from ImageNet: CIFAR-100 86.73, ClipArt 77.88, Painting 72.05, Sketch 70.79, tables 1 and 8"
)
_COST_CIFAR = "300 epochs at 32 pixels with 512 images per step; the paper used two GPUs (--devices 2)"
_COST_LARGE_IMAGES = "300 epochs at 224 pixels; the paper used two GPUs (--devices 2)"
_COST_FINE_TUNING = "100 epochs at 224 pixels with 256 images per step (--devices 2); give --init"
_FINE_TUNING_WEIGHTS = (
    "weights of ImageNet-1k, which are not published for DHVT: give --init a run, such as one of --recipe "
    "dhvt-imagenet, or a weights file"
)

# DHVT's code evaluates the central 224 of 256 pixels, as DrLoc's code does.
_recipe = partial(Recipe, imagenet_crop=True)
_CIFAR_RECIPE = _recipe("DHVT from scratch on CIFAR", _SOURCE, _COST_CIFAR, _SCORES_CIFAR, _CIFAR_SETTINGS, 1e-3)

RECIPES: dict[str, Recipe] = {
    "dhvt": replace(
        _CIFAR_RECIPE,
        summary="DHVT from scratch on any images: the paper's training, with the model variant for their size",
        # Settings that are left out are chosen from the images: this recipe does not reproduce a published table.
        settings=without(_CIFAR_SETTINGS, "model", "img_size", "batch_size", "crop", "rand_augment", "val_fraction"),
    ),
    "dhvt-cifar": _CIFAR_RECIPE,
    "dhvt-cifar-reference": _recipe(
        "the same with the published code's schedule, whose rate changes once per epoch, one epoch late",
        _CODE_SOURCE,
        _COST_CIFAR,
        _SCORES_CIFAR,
        {**_CIFAR_SETTINGS, **_CODE_SCHEDULE_SETTINGS},
        1e-3,
    ),
    "dhvt-domainnet": _recipe(
        "DHVT from scratch on a domain of DomainNet",
        f"{_SOURCE}, and the batch size of the code",
        _COST_LARGE_IMAGES,
        _SCORES_DOMAINNET,
        {**_DOMAINNET_SETTINGS, "batch_size": 128},
        1e-3,
    ),
    "dhvt-domainnet-reference": _recipe(
        "the same as in the published code",
        _CODE_SOURCE,
        _COST_LARGE_IMAGES,
        _SCORES_DOMAINNET,
        {**_DOMAINNET_SETTINGS, **_CODE_SCHEDULE_SETTINGS, "batch_size": 128},
        1e-3,
    ),
    "dhvt-imagenet": _recipe(
        "DHVT on ImageNet-1K, learning rate 5e-4 for 512 images per step",
        _SOURCE,
        _COST_LARGE_IMAGES,
        _SCORES_IMAGENET,
        _IMAGENET_SETTINGS,
        5e-4,
    ),
    "dhvt-imagenet-reference": _recipe(
        "the same as in the published code: half the batch size and half the learning rate",
        _CODE_SOURCE,
        _COST_LARGE_IMAGES,
        _SCORES_IMAGENET,
        {**_IMAGENET_SETTINGS, **_CODE_SCHEDULE_SETTINGS, "batch_size": 128},
        5e-4,
    ),
    "dhvt-finetune": _recipe(
        "DHVT fine-tuned from ImageNet weights, learning rate 5e-4 for 256 images per step; give --init",
        _SOURCE,
        _COST_FINE_TUNING,
        _SCORES_FINE_TUNING,
        {**_FINE_TUNING_SETTINGS, "batch_size": 128},
        1e-3,
        initial_weights=_FINE_TUNING_WEIGHTS,
    ),
    "dhvt-finetune-reference": _recipe(
        "the same as in the published code: half the learning rate, and fixed batch norm statistics (evaluation mode)",
        _CODE_SOURCE,
        _COST_FINE_TUNING,
        _SCORES_FINE_TUNING,
        {**_FINE_TUNING_SETTINGS, **_CODE_SCHEDULE_SETTINGS, "batch_size": 128, "eval_mode": True},
        5e-4,
        initial_weights=_FINE_TUNING_WEIGHTS,
    ),
}


def dhvt_variant(side: int, n_classes: int) -> tuple[str, str]:
    """Return the DHVT model for images of `side` x `side` pixels in `n_classes` classes, and the reason."""
    if side <= 64:
        return "dhvt_tiny_cifar_patch4", f"images of {side} pixels: DHVT-T in patches of 4"
    if n_classes >= 1000:
        return "dhvt_tiny_imagenet_patch16", f"images of {side} pixels and {n_classes} classes: DHVT-T for ImageNet"
    return "dhvt_tiny_domain_patch16", f"images of {side} pixels: DHVT-T in patches of 16, as on DomainNet"
