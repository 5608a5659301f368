"""The recipes of `paucal train`: settings of published experiments, and of experiments of this project.

A recipe overrides values that are chosen from the data; a config file and flags override a recipe.
"""

from paucal.recipes import dhvt, drloc, token_labeling
from paucal.recipes.recipe import Recipe
from paucal.recipes.token_labeling import lvvit_drop_path as lvvit_drop_path

RECIPES: dict[str, Recipe] = {
    **drloc.RECIPES,
    **token_labeling.RECIPES,
    **dhvt.RECIPES,
    "small-images": Recipe(
        "light augmentation for images of up to 64 pixels and short runs",
        "docs/lab/2026-11-21-drloc-fifteen-epochs.md",
        "minutes on a CPU for a few thousand images",
        "docs/lab/2026-11-21-drloc-fifteen-epochs.md",
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
