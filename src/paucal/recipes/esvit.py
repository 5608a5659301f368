"""Named recipes of pre-training: EsViT's published runs, one per model, and what small sets and machines do.

The published settings are those of the program's released runs (its README, its run folders' names and its author's
list of arguments for Swin-T): two global crops of 224 and eight local ones of 96 pixels, AdamW, 300 epochs.
"""

from typing import Any

from paucal.recipes.recipe import Recipe

_CROPS: dict[str, Any] = {
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
_METHOD: dict[str, Any] = {
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
    "batch_size": 32,
    "warmup_epochs": 10.0,
    "min_lr": 1e-6,
    "weight_decay": 0.04,
    "weight_decay_end": 0.4,
    "clip": 3.0,
}
_COST = "300 epochs of ImageNet-1K; published with {} images a step: give --devices and --batch-size"


def _published(
    summary: str, model: str, scores: str, batch: int, region_after: int | None = None, **changes: Any
) -> Recipe:
    rate = 0.2 if "small" in model or "base" in model else 0.1
    settings = {**_CROPS, **_METHOD, "model": model, "drop_path": rate, **changes}
    if region_after:
        settings["region_after"] = region_after
    source = "arXiv:2106.09785, section 4, and its program's runs"
    return Recipe(summary, source, _COST.format(batch), scores, settings, lr_per_512=1e-3)


RECIPES: dict[str, Recipe] = {
    "esvit-swin-tiny": _published(
        "EsViT's Swin-T with windows of 7, both tasks from the start",
        "esvit_swin_tiny_patch4_window7_224",
        "ImageNet-1K: linear 78.1, k-NN 75.7",
        512,
    ),
    "esvit-swin-small": _published(
        "EsViT's Swin-S with windows of 7, both tasks from the start",
        "esvit_swin_small_patch4_window7_224",
        "ImageNet-1K: linear 79.5, k-NN 77.7",
        512,
    ),
    "esvit-swin-base": _published(
        "EsViT's Swin-B with windows of 7, the region task from epoch 200",
        "esvit_swin_base_patch4_window7_224",
        "ImageNet-1K: linear 80.4, k-NN 78.9",
        512,
        200,
    ),
    "esvit-swin-tiny-w14": _published(
        "EsViT's Swin-T with windows of 14, the region task from epoch 200",
        "esvit_swin_tiny_patch4_window14_224",
        "ImageNet-1K: linear 78.7, k-NN 77.0",
        512,
        200,
    ),
    "esvit-swin-small-w14": _published(
        "EsViT's Swin-S with windows of 14, the region task from epoch 180",
        "esvit_swin_small_patch4_window14_224",
        "ImageNet-1K: linear 80.8, k-NN 79.1",
        512,
        180,
    ),
    "esvit-swin-base-w14": _published(
        "EsViT's Swin-B with windows of 14, the region task from epoch 200, prototypes of length 1",
        "esvit_swin_base_patch4_window14_224",
        "ImageNet-1K: linear 81.3, k-NN 79.3",
        512,
        200,
        learn_lengths=False,
    ),
    "esvit-vil-tiny": _published(
        "EsViT's ViL-T, the region task from epoch 200",
        "esvit_vil_tiny",
        "ImageNet-1K: linear 77.5, k-NN 74.5",
        1024,
        200,
    ),
    "esvit-cvt-tiny": _published(
        "EsViT's CvT-T, the region task from epoch 200",
        "esvit_cvt_tiny",
        "ImageNet-1K: linear 78.5, k-NN 76.7",
        1024,
        200,
    ),
    "esvit-resnet50": _published(
        "EsViT's ResNet-50, the region task from epoch 200",
        "resnet50",
        "ImageNet-1K: linear 75.7, k-NN 71.3",
        1024,
        200,
        drop_path=0.0,
    ),
    "esvit-small-batch": Recipe(
        "batches of 16 to 128 on one device: prototypes of length 1 held for longer, a slower teacher, a cooler end",
        "this project, after DINO's advice for small batches",
        "one device",
        "docs/lab_notes.md",
        {
            "batch_size": 32,
            "learn_lengths": False,
            "freeze_last_layer": 3,
            "teacher_temperature": 0.04,
            "warmup_teacher_temperature": 0.04,
        },
    ),
}
