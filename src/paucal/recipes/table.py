"""Named recipes: complete settings of published experiments, and of what this project found to work.

A recipe wins over values chosen from the data and gives way to a config file and to flags.
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
