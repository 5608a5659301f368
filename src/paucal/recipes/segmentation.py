"""Recipes for the papers' segmentation experiments on ADE20K: UperNet for 160,000 steps of 16 crops."""

from typing import Any

from paucal.recipes.recipe import Recipe, Variant

# From DrLoc's supplement (tables 12 and 13), which uses Swin's code. EsViT and LV-ViT use this code too.
_ADE20K_SETTINGS: dict[str, Any] = {
    "ignore": [0],  # 0 marks unlabelled pixels; the values from 1 to 150 are classes
    "img_size": [512],
    "resize_to": [512, 2048],
    "width": 512,
    "auxiliary_width": 256,
    "dropout": 0.1,
    "auxiliary": 0.4,
    "sync_bn": True,
    "batch_size": 2,
    "devices": 8,
    "epochs": 127,  # 160,000 steps on 20,210 images
    "crops": 1,
    # The papers do no model selection: they train on all 20,210 images, and evaluate the weights of the last step.
    "val_fraction": 0.0,
    "lr": 6e-5,
    "min_lr": 0.0,
    "backbone_lr": 1.0,
    "freeze": "none",
    "warmup_epochs": 1.19,  # 1,500 steps
    "schedule": "linear",
    "weight_decay": 0.01,
    "clip": 0.0,
    "scale": [0.5, 2.0],
    "hflip": 0.5,
    "colour": "photometric",
}
SCALES = [0.5, 0.75, 1.0, 1.25, 1.5, 1.75]  # scale factors of the test images, from section 4.2 of the supplement
_COST = "160,000 steps of 16 crops of 512 pixels: eight GPUs with 2 crops each (--devices 8), about a day"
RECIPES: dict[str, Recipe] = {
    "upernet-ade20k": Recipe(
        "UperNet as in the papers' ADE20K tables: 160,000 steps of 16 crops of 512 pixels",
        "arXiv:2106.03746, supplement, tables 12 and 13",
        _COST,
        "Swin-T from ImageNet-1K: mean IoU 43.87; 44.33 if pre-trained with DrLoc (table 12)",
        {
            **_ADE20K_SETTINGS,
            "model": "padded_swin_tiny_patch4_window7_224",
            "drop_path": 0.2,
            "test_mode": "whole",
            "scales": SCALES,
            "mirror": True,
        },
        initial_weights="a pre-trained backbone: give --init a run, a weights file or timm",
    ),
    "upernet-ade20k-lvvit": Recipe(
        "the same for LV-ViT, with a head of half the width, or of the full width for LV-ViT-L",
        "arXiv:2104.10858, the table of ADE20K, and the code",
        _COST,
        "mean IoU at one scale and at several scales: LV-ViT-S 47.9 and 48.6; LV-ViT-M 49.4 and 50.6; LV-ViT-L 50.9 "
        "and 51.8",
        {
            **_ADE20K_SETTINGS,
            "model": "lvvit_s",
            "width": 256,
            "test_mode": "windows",
            "overlap": 0.334,  # windows of 512 pixels, one every 341 pixels
        },
        initial_weights="a pre-trained LV-ViT: give --init a run or a weights file",
        variants={"lvvit_l": Variant({"width": 512, "auxiliary_width": 512})},
    ),
}
