"""Recipes for the papers' COCO detectors: Mask R-CNN and Cascade Mask R-CNN with a Swin backbone, 1x and 3x schedules.

The settings are those of DrLoc's supplement, section 4.1 (tables 10 and 11), which follows Swin's code. The EsViT
paper gives no settings for its table 4, whose supervised row equals the "3x" result of Swin's code. Values that the
papers do not give are those of Swin's code: 500 warm-up steps from a thousandth of the learning rate, no gradient
clipping, one learning rate for all layers, and the settings of the two detectors. `docs/reference/detector.md` lists
the remaining differences.
"""

from typing import Any

from paucal.recipes.recipe import Recipe

LENGTH_SETTINGS = ("epochs", "milestones")  # settings that --time or --steps replaces
TRAINING_IMAGES = 117_266  # number of COCO 2017 training images with at least one object, of 118,287 in all

_COCO_SETTINGS: dict[str, Any] = {
    "model": "padded_swin_tiny_patch4_window7_224",
    "img_size": [800, 1333],
    "finest": 4,
    "anchor": 8,
    "pyramid_channels": 256,
    "pyramid_norm": "none",
    "pooling": "aligned",
    "head_dim": 1024,
    "regions": 512,
    "candidates": 2000,
    "empty_images": "drop",
    "least_box": 1.0,
    "batch_size": 2,
    "devices": 8,
    "lr": 1e-4,
    "weight_decay": 0.05,
    "clip": 0.0,
    "warmup_epochs": 0.0682,  # 500 steps of 16 images
    "backbone_lr": 1.0,
    "freeze": "none",
    "eval_mode": False,
    "average": 0.0,
    "hflip": 0.5,
    "jitter": "cropped",
    # The papers do no model selection: they train on all images, and evaluate the weights of the last step.
    "val_fraction": 0.0,
}
_SETTINGS_BY_DETECTOR: dict[str, dict[str, Any]] = {
    "detector": {
        "cascade": False,
        "head": "2fc",
        "box_loss": "l1",
        "proposal_loss": "l1",
        "matching": "regions",
        "proposals": 1000,
    },
    "cascade": {
        "cascade": True,
        "head": "4conv1fc",
        "sync_bn": True,
        "cascade_boxes": "per-class",
        "cascade_average": "logits",
        "box_loss": "giou",
        "proposal_loss": "smooth-l1",
        "matching": "anchors",
        "proposals": 2000,
    },
}
_SETTINGS_BY_SCHEDULE: dict[str, dict[str, Any]] = {
    "1x": {"epochs": 12, "milestones": [8, 11]},
    "3x": {"epochs": 36, "milestones": [27, 33]},
}
_DROP_PATHS = {("detector", "1x"): 0.1, ("cascade", "1x"): 0.0, ("detector", "3x"): 0.2, ("cascade", "3x"): 0.2}
_SOURCES = {
    "1x": "arXiv:2106.03746, supplement, section 4.1 and table 10, and Swin's code",
    "3x": "arXiv:2106.09785, table 4, and Swin's code",
}
_COSTS = {
    "1x": "87,948 steps of 16 images of 800x1333 pixels: eight GPUs with 2 images each (--devices 8), about half a day",
    "3x": "263,844 steps of 16 images of 800x1333 pixels: eight GPUs with 2 images each (--devices 8), one to two days",
}
_EXPECTED = {
    ("detector", "1x"): "with masks: box AP 43.4; 43.8 if pre-trained with DrLoc (table 10)",
    ("detector", "3x"): "with masks: box AP 46.0; 46.2 if pre-trained with EsViT (table 4)",
    ("cascade", "1x"): "with masks: box AP 48.0; 48.2 if pre-trained with DrLoc (table 10)",
    ("cascade", "3x"): "with masks: box AP 50.4 (Swin's code)",
}
_SUMMARIES = {
    "detector": "Faster or Mask R-CNN on Swin-T as in the papers' COCO tables",
    "cascade": "Cascade R-CNN or Cascade Mask R-CNN on Swin-T as in the papers' COCO tables",
}


def _coco_recipe(kind: str, length: str) -> Recipe:
    settings = {
        **_COCO_SETTINGS,
        **_SETTINGS_BY_DETECTOR[kind],
        **_SETTINGS_BY_SCHEDULE[length],
        "drop_path": _DROP_PATHS[kind, length],
    }
    return Recipe(
        f"{_SUMMARIES[kind]}: {settings['epochs']} epochs, with the learning rate reduced after epochs "
        f"{settings['milestones'][0]} and {settings['milestones'][1]}",
        _SOURCES[length] if (kind, length) != ("cascade", "3x") else "Swin's code",
        _COSTS[length],
        _EXPECTED[kind, length],
        settings,
        initial_weights="a pre-trained backbone: give --init a run, a weights file or timm",
    )


RECIPES: dict[str, Recipe] = {
    f"{kind}-coco-{length}": _coco_recipe(kind, length) for kind in ("detector", "cascade") for length in ("1x", "3x")
}
