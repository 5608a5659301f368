"""Named recipes: complete settings of published experiments, and of what this project found to work.

A recipe wins over values chosen from the data and gives way to a config file and to flags.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paucal.recipes.settings import TrainSettings
from paucal.types import UserError


@dataclass(frozen=True)
class Recipe:
    """A named recipe.

    Attributes:
        summary: one line for people.
        source: where its values are from.
        cost: what a run takes.
        expected: what it has been reported to reach.
        settings: values by name; all others are chosen from the data.
        lr_per_512: learning rate for 512 images in a step, to which the rate is proportional; None for the usual rule.
    """

    summary: str
    source: str
    cost: str
    expected: str
    settings: Mapping[str, Any]
    lr_per_512: float | None = None


# Section 4 and appendix of the paper (arXiv:2106.03746), completed from its program where the paper is silent.
_PAPER: dict[str, Any] = {
    "model": "swin_tiny_patch4_window7_224",
    "img_size": [224],
    "method": "drloc",
    "drloc_preset": "paper",
    "epochs": 100,
    "schedule_epochs": 100,
    "batch_size": 128,
    "warmup_epochs": 20.0,
    "weight_decay": 0.05,
    "clip": 5.0,
    "average": 0.0,
    "label_smoothing": 0.1,
    "crop": "random-resized",
    "crop_scale": 0.08,
    "hflip": 0.5,
    "rand_augment": "rand-m9-mstd0.5-inc1",
    "erase": 0.25,
    "mixup": 0.8,
    "cutmix": 1.0,
    "normalise": "imagenet",
}
# The program's 100 epochs are the first third of a cosine of 300, and its loss is another reading of the formula.
_REFERENCE = {**_PAPER, "drloc_preset": "reference", "schedule_epochs": 300}
_TUNED = {"init": "timm", "warmup_epochs": 10.0}
_SCRATCH_SCORES = "Swin-T, table 4: CIFAR-10 83.89 (59.47 without the loss), CIFAR-100 66.23 (53.28), Flowers102 39.37"
_TUNED_SCORES = "Swin-T, table 5: CIFAR-10 98.37 (97.95 without the loss), CIFAR-100 88.40 (88.22), Flowers102 98.21"
_COST = "100 epochs at 224 pixels; the paper used eight V100 with 128 images each (--devices 8)"

RECIPES: dict[str, Recipe] = {
    "drloc-scratch": Recipe(
        "the DrLoc paper's training from scratch", "arXiv:2106.03746, section 4", _COST, _SCRATCH_SCORES, _PAPER, 5e-4
    ),
    "drloc-scratch-reference": Recipe(
        "the same as the published program does it: its reading of the loss, a third of a 300-epoch cosine",
        "the paper's program",
        _COST,
        _SCRATCH_SCORES,
        _REFERENCE,
        5e-4,
    ),
    "drloc-finetune": Recipe(
        "the DrLoc paper's fine-tuning from ImageNet-1K weights",
        "arXiv:2106.03746, section 4",
        _COST,
        _TUNED_SCORES,
        {**_PAPER, **_TUNED},
        2.5e-4,
    ),
    "drloc-finetune-reference": Recipe(
        "the same with the published program's reading of the loss (the program itself cannot fine-tune)",
        "the paper's protocol, its program's loss",
        _COST,
        _TUNED_SCORES,
        {**_REFERENCE, **_TUNED, "schedule_epochs": 100},
        2.5e-4,
    ),
    "small-images": Recipe(
        "light augmentation for images of up to 64 pixels and short runs",
        "benchmarks/drloc_gain.py",
        "minutes on a processor for a few thousand images",
        "docs/lab_notes.md",
        {
            "batch_size": 64,
            "crop": "padded",
            "hflip": 0.5,
            "rand_augment": "none",
            "mixup": 0.0,
            "cutmix": 0.0,
            "erase": 0.0,
            "drop_path": 0.0,
        },
    ),
}


def with_recipe(settings: TrainSettings, given: Mapping[str, str]) -> tuple[TrainSettings, dict[str, str]]:
    """Fill in what a named recipe says and nobody has given.

    Returns:
        The settings, and the origin of each that was given, "recipe NAME" for the recipe's.

    Raises:
        UserError: there is no such recipe.
    """
    name = settings.recipe
    if name is None:
        return settings, dict(given)
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UserError(f"--recipe: {name!r} is unknown, expected one of {', '.join(RECIPES)}{hint}")
    values = {key: value for key, value in RECIPES[name].settings.items() if key not in given}
    if given.get("method") and "drloc" not in (settings.method, *(settings.add or ())):
        values = {key: value for key, value in values.items() if not key.startswith("drloc_")}
    return replace(settings, **values), {**given, **dict.fromkeys(values, f"recipe {name}")}


def recipe_rate(settings: TrainSettings, batch: int) -> tuple[float, str] | None:
    """Return the learning rate that a recipe has for a number of images per step, and why; None without one."""
    recipe = RECIPES.get(settings.recipe or "")
    if recipe is None or recipe.lr_per_512 is None:
        return None
    rate = recipe.lr_per_512 * batch / 512
    return rate, f"recipe {settings.recipe}: {recipe.lr_per_512:g} for 512 images in a step, here {batch}"
