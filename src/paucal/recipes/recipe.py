"""Recipes: named sets of training settings, and functions that apply a recipe to the settings of a run."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from paucal.settings.options import require_known
from paucal.types import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")


# Settings that several papers share; the augmentation is DeiT's
DEIT_SETTINGS: dict[str, Any] = {
    "val_fraction": 0.0,  # all images train, and the weights of the last epoch are used
    "weight_decay": 0.05,
    "label_smoothing": 0.1,
    "hflip": 0.5,
    "rand_augment": "rand-m9-mstd0.5-inc1",
    "erase": 0.25,
    "mixup": 0.8,
    "cutmix": 1.0,
    "normalise": "imagenet",
}


@dataclass(frozen=True)
class Variant:
    """Settings of a recipe that apply only to some models, and override the recipe's own settings."""

    settings: Mapping[str, Any]  # values of the settings, by name
    # Learning rate for 512 images per step, as in `Recipe`; None to use the recipe's value
    lr_per_512: float | None = None


@dataclass(frozen=True)
class Recipe:
    """A named set of settings."""

    summary: str  # description in one line
    source: str  # where the settings come from, such as a section of a paper
    cost: str  # epochs, image size, images per step and GPUs of a run, as one line
    expected: str  # published scores, or the page that has measured scores
    settings: Mapping[str, Any]  # values of the settings, by name; all other settings are chosen from the data
    # Learning rate for 512 images per step, which is scaled in proportion to the images per step; None to use the
    # default rule
    lr_per_512: float | None = None
    # Settings that apply only to some models, by the beginning of the model's name; the first match is used
    variants: Mapping[str, Variant] = field(default_factory=dict)
    # Description of the weights that the recipe fine-tunes, for messages; None if a run of the recipe may start from
    # random weights
    initial_weights: str | None = None
    # Whether `--init timm` loads weights that were trained only on the labels of ImageNet-1k
    imagenet_alone: bool = False
    # Whether models are evaluated as in the code of the recipe's authors, which resizes images to 256 pixels and
    # evaluates the central 224 pixels for every model
    imagenet_crop: bool = False
    # Published scores of further runs, by the flags to add to this recipe
    scores_by_flags: Mapping[str, str] = field(default_factory=dict)

    def for_model(self, model: str | None) -> "Recipe":
        """Return the recipe with the settings for a model; `model` is None if no model is chosen yet."""
        for beginning, variant in self.variants.items():
            if (model or "").startswith(beginning):
                rate = variant.lr_per_512 or self.lr_per_512
                return replace(self, settings={**self.settings, **variant.settings}, lr_per_512=rate)
        return self


def without(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a copy of the settings, by name, without the settings called `names`."""
    return {name: value for name, value in settings.items() if name not in names}


def recipe_learning_rate(
    recipes: Mapping[str, Recipe], name: str | None, model: str | None, batch_size: int
) -> tuple[float, str] | None:
    """Return a recipe's learning rate for a model and a batch size, and the reason; None if the recipe sets no rate."""
    recipe = recipes.get(name or "")
    rate = None if recipe is None else recipe.for_model(model).lr_per_512
    if rate is None:
        return None
    return rate * batch_size / 512, f"recipe {name}: {rate:g} for 512 images in a step, here {batch_size}"


def require_init(recipes: Mapping[str, Recipe], name: str | None, init: str | None) -> None:
    """Raise a UserError if a recipe for fine-tuning is used without `--init`."""
    recipe = recipes.get(name or "")
    if recipe is not None and recipe.initial_weights is not None and init is None:
        raise UserError(f"--recipe {name} starts from {recipe.initial_weights}.")


def fill_in(
    settings: S, origins: Mapping[str, str], recipes: Mapping[str, Recipe], name: str | None, left_out: Container[str]
) -> tuple[S, dict[str, str]]:
    """Use a recipe's value for each setting that the user has not set, except for the settings in `left_out`.

    Return the settings, and `origins` with "recipe NAME" added for each setting from the recipe.
    """
    if name is None:
        return settings, dict(origins)
    recipe = recipes[require_known("recipe", name, recipes)]
    model = getattr(settings, "model", None) if "model" in origins else recipe.settings.get("model")
    recipe_settings = recipe.for_model(model).settings
    values = {key: value for key, value in recipe_settings.items() if key not in origins and key not in left_out}
    return replace(settings, **values), {**origins, **dict.fromkeys(values, f"recipe {name}")}
