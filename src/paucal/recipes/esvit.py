"""The recipes of `paucal pretrain`: a recipe for each of EsViT's published models, and a recipe for small batches.

The published settings are those of the released runs (the code's README, the names of the run folders and the author's
list of arguments for Swin-T): two global crops of 224 pixels and eight local crops of 96, AdamW, 300 epochs. With the
flags in `Recipe.scores_by_flags`, the recipes cover every trained row of the paper's tables 1, 2, 3, 5 and 8. Scores
are taken from the tables; some scores in the README differ by 0.1 or 0.2.

The number of images per device is the published number if known (Swin with W=14: 16 and 8; ResNet-50, ViL and CvT: 64).
The other recipes have 32 images per device for steps of 512 images and 64 for steps of 1024; only the number of images
per step affects training.
"""

from collections.abc import Mapping
from typing import Any

from paucal.recipes.recipe import Recipe

_CROP_SETTINGS: dict[str, Any] = {
    "img_size": [224],
    "global_crops": 2,
    "global_scale": [0.4, 1.0],
    "local_crops": [8],
    "local_size": [96],
    "local_scale": [0.05, 0.4],
    "pipeline": "dino",
    "blur": [0.1, 2.0],
    "normalise": "imagenet",
}
_METHOD_SETTINGS: dict[str, Any] = {
    "tasks": "view+region",
    "out_dim": 65536,
    "hidden_dim": 2048,
    "bottleneck_dim": 256,
    "head_norm": "none",
    "learn_lengths": True,
    "freeze_last_layer": 1,
    "teacher_temperature": 0.07,
    "warmup_teacher_temperature": 0.04,
    "warmup_teacher_epochs": 30,
    "momentum": 0.996,
    "epochs": 300,
    "warmup_epochs": 10.0,
    "min_lr": 1e-6,
    "weight_decay": 0.04,
    "weight_decay_end": 0.4,
    "clip": 3.0,
}
DEVICES_PER_NODE = 16  # number of GPUs in each node of the published runs
VIEW_TASK_FLAG = "--tasks view"
HUNDRED_EPOCHS_FLAG = "--epochs 100"


def _published_recipe(
    summary: str,
    model: str,
    expected: str,
    devices: tuple[int, int] = (16, 32),
    scores_by_flags: Mapping[str, str] | None = None,
    **changes: Any,
) -> Recipe:
    """Return the recipe of a published run.

    Args:
        summary: Description in one line.
        model: Name of the model.
        expected: Published scores.
        devices: Number of devices, and number of images per step on each device.
        scores_by_flags: Published scores of further runs, by the flags to add.
        **changes: Settings that differ from those of the other recipes.
    """
    n_devices, batch_size = devices
    drop_path = 0.2 if "swin_small" in model or "swin_base" in model else 0.1
    flags = (
        f"--devices {n_devices}"
        if n_devices <= DEVICES_PER_NODE
        else f"--nodes {n_devices // DEVICES_PER_NODE} --devices {DEVICES_PER_NODE}"
    )
    return Recipe(
        summary,
        "arXiv:2106.09785, section 4, and the runs released with the code",
        f"{changes.get('epochs', 300)} epochs of ImageNet-1K with {n_devices * batch_size} images per step: {flags}",
        f"ImageNet-1K: {expected}",
        {
            **_CROP_SETTINGS,
            **_METHOD_SETTINGS,
            "model": model,
            "drop_path": drop_path,
            "batch_size": batch_size,
            **changes,
        },
        lr_per_512=1e-3,
        scores_by_flags=scores_by_flags or {},
    )


RECIPES: dict[str, Recipe] = {
    "esvit-swin-tiny": _published_recipe(
        "EsViT's Swin-T with windows of 7, view and region tasks from the start",
        "esvit_swin_tiny_patch4_window7_224",
        "linear 78.1, k-NN 75.7",
        scores_by_flags={VIEW_TASK_FLAG: "linear 77.0, k-NN 74.2"},
    ),
    "esvit-swin-tiny-1024": _published_recipe(
        "EsViT's Swin-T with windows of 7, the view task alone in steps of 1024 images",
        "esvit_swin_tiny_patch4_window7_224",
        "linear 77.1, k-NN 73.7",
        (16, 64),
        scores_by_flags={
            HUNDRED_EPOCHS_FLAG: "linear 75.3, k-NN 70.0",
            "--region-after 200": "the region task from epoch 200: linear 77.6, k-NN 75.4",
            "--epochs 150 --warmup-epochs 5": "on WebVision (paucal pretrain webvision): linear 75.4, k-NN 69.4",
            "--epochs 50 --warmup-epochs 2": "on Open Images (paucal pretrain openimages): linear 69.6, k-NN 60.3",
            "--epochs 30 --warmup-epochs 1": "on ImageNet-22K: linear 73.5, k-NN 66.1",
        },
        tasks="view",
    ),
    "esvit-swin-small": _published_recipe(
        "EsViT's Swin-S with windows of 7, view and region tasks from the start",
        "esvit_swin_small_patch4_window7_224",
        "linear 79.5, k-NN 77.7",
        scores_by_flags={VIEW_TASK_FLAG: "linear 79.2, k-NN 76.8"},
    ),
    "esvit-swin-base": _published_recipe(
        "EsViT's Swin-B with windows of 7, the region task from epoch 200",
        "esvit_swin_base_patch4_window7_224",
        "linear 80.4, k-NN 78.9",
        scores_by_flags={VIEW_TASK_FLAG: "linear 79.6, k-NN 77.7"},
        region_after=200,
    ),
    "esvit-swin-tiny-w14": _published_recipe(
        "EsViT's Swin-T with windows of 14, the region task from epoch 200",
        "esvit_swin_tiny_patch4_window14_224",
        "linear 78.7, k-NN 77.0",
        scores_by_flags={VIEW_TASK_FLAG: "linear 77.9, k-NN 75.5"},
        region_after=200,
    ),
    "esvit-swin-small-w14": _published_recipe(
        "EsViT's Swin-S with windows of 14, the region task from epoch 180",
        "esvit_swin_small_patch4_window14_224",
        "linear 80.8, k-NN 79.1",
        (32, 16),
        scores_by_flags={VIEW_TASK_FLAG: "linear 79.4, k-NN 77.3"},
        region_after=180,
    ),
    "esvit-swin-base-w14": _published_recipe(
        "EsViT's Swin-B with windows of 14, the region task from epoch 200, prototypes of length 1",
        "esvit_swin_base_patch4_window14_224",
        "linear 81.3, k-NN 79.3",
        (64, 8),
        scores_by_flags={VIEW_TASK_FLAG: "linear 80.5, k-NN 78.3"},
        region_after=200,
        learn_lengths=False,
    ),
    "esvit-deit-small": _published_recipe(
        "EsViT's DeiT-S of 16-pixel patches, the view task alone",
        "esvit_deit_small_patch16_224",
        "linear 75.9, k-NN 73.2",
        (16, 64),
        scores_by_flags={HUNDRED_EPOCHS_FLAG: "linear 73.1, k-NN 69.0"},
        tasks="view",
    ),
    "esvit-vil-tiny": _published_recipe(
        "EsViT's ViL-T, the region task from epoch 200",
        "esvit_vil_tiny",
        "linear 77.5, k-NN 74.5",
        (16, 64),
        scores_by_flags={
            VIEW_TASK_FLAG: "linear 77.3, k-NN 73.9",
            f"{VIEW_TASK_FLAG} {HUNDRED_EPOCHS_FLAG}": "linear 75.4, k-NN 70.1",
        },
        region_after=200,
    ),
    "esvit-cvt-tiny": _published_recipe(
        "EsViT's CvT-T, the region task from epoch 200",
        "esvit_cvt_tiny",
        "linear 78.5, k-NN 76.7",
        (16, 64),
        scores_by_flags={
            VIEW_TASK_FLAG: "linear 77.6, k-NN 74.8",
            f"{VIEW_TASK_FLAG} {HUNDRED_EPOCHS_FLAG}": "linear 75.5, k-NN 70.6",
        },
        region_after=200,
    ),
    "esvit-resnet50": _published_recipe(
        "EsViT's ResNet-50, the region task from epoch 200",
        "resnet50",
        "linear 75.7, k-NN 71.2",
        (16, 64),
        scores_by_flags={VIEW_TASK_FLAG: "linear 75.0, k-NN 69.3"},
        region_after=200,
        drop_path=0.0,
    ),
    "esvit-small-batch": Recipe(
        "batches of 16 to 128 images on one device: prototypes of length 1, frozen for longer; a lower teacher "
        "temperature",
        "this project, after DINO's advice for small batches",
        "one device",
        "docs/lab/2026-11-21-pretraining-small.md",
        {
            "batch_size": 32,
            "learn_lengths": False,
            "freeze_last_layer": 3,
            "teacher_temperature": 0.04,
            "warmup_teacher_temperature": 0.04,
        },
    ),
}
