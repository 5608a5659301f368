"""Named recipes: complete settings of published experiments, and of what this project found to work.

A recipe wins over values chosen from the data and gives way to a config file and to flags.
"""

from collections.abc import Mapping
from dataclasses import replace

from paucal.recipes import published_dhvt, published_drloc, published_token_labeling
from paucal.recipes.recipe import Recipe, find_recipe
from paucal.recipes.rules_images import UNMIXED
from paucal.recipes.settings import TrainSettings

RECIPES: dict[str, Recipe] = {
    **published_drloc.RECIPES,
    **published_token_labeling.RECIPES,
    **published_dhvt.RECIPES,
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
    values = {key: value for key, value in find_recipe(RECIPES, name).settings.items() if key not in given}
    if given.get("method") and "drloc" not in (settings.method, *(settings.add or ())):
        values = {key: value for key, value in values.items() if not key.startswith("drloc_")}
    if given.get("method") and settings.method not in UNMIXED:
        values = {key: value for key, value in values.items() if not key.startswith("token_")}
    return replace(settings, **values), {**given, **dict.fromkeys(values, f"recipe {name}")}


def recipe_rate(settings: TrainSettings, batch: int) -> tuple[float, str] | None:
    """Return the learning rate that a recipe has for a number of images per step, and why; None without one."""
    recipe = RECIPES.get(settings.recipe or "")
    return None if recipe is None else recipe.rate(settings.recipe or "", batch)
