"""The definition of a named recipe."""

import difflib
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from paucal.types import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")


@dataclass(frozen=True)
class Variant:
    """Different settings of a recipe for some models.

    Attributes:
        settings: Settings by name.
        lr_per_512: Learning rate for a batch of 512, as in `Recipe`; None for the recipe's.
    """

    settings: Mapping[str, Any]
    lr_per_512: float | None = None


@dataclass(frozen=True)
class Recipe:
    """A named recipe.

    Attributes:
        settings: Settings by name; all others are chosen from the data.
        lr_per_512: Learning rate for 512 images per step, scaled in proportion for others; None for the default rule.
        variants: Different settings by the start of a model's name; the first match is used.
        tunes: Weights that the recipe fine-tunes, for messages; "" if it may start from random weights.
        imagenet_alone: Whether "timm" means weights trained on the labels of ImageNet-1k only.
        imagenet_crop: Whether its authors' code evaluates the middle 224 of 256 pixels for every model.
        also: Published scores of other runs, by the flags to add to this recipe.
    """

    summary: str
    source: str
    cost: str
    expected: str
    settings: Mapping[str, Any]
    lr_per_512: float | None = None
    variants: Mapping[str, Variant] = field(default_factory=dict)
    tunes: str | None = None
    imagenet_alone: bool = False
    imagenet_crop: bool = False
    also: Mapping[str, str] = field(default_factory=dict)

    def of_model(self, model: str | None) -> "Recipe":
        """Return the recipe with the settings that differ for a model."""
        for beginning, variant in self.variants.items():
            if (model or "").startswith(beginning):
                rate = variant.lr_per_512 or self.lr_per_512
                return replace(self, settings={**self.settings, **variant.settings}, lr_per_512=rate)
        return self

    def rate(self, name: str, batch_size: int) -> tuple[float, str] | None:
        """Return the learning rate for a number of images per step, and why; None where the recipe has none."""
        if self.lr_per_512 is None:
            return None
        reason = f"recipe {name}: {self.lr_per_512:g} for 512 images in a step, here {batch_size}"
        return self.lr_per_512 * batch_size / 512, reason


def find_recipe(recipes: Mapping[str, Recipe], name: str) -> Recipe:
    """Return a recipe by its name."""
    if name not in recipes:
        similar = difflib.get_close_matches(name, recipes, n=1)
        hint = f"; did you mean {similar[0]!r}?" if similar else "."
        raise UserError(f"--recipe: {name!r} is unknown, expected one of {', '.join(recipes)}{hint}")
    return recipes[name]


def recipe_rate(
    recipes: Mapping[str, Recipe], name: str | None, model: str | None, batch_size: int
) -> tuple[float, str] | None:
    """Return the learning rate that a recipe has for a model and a number of images per step, and why."""
    recipe = recipes.get(name or "")
    return None if recipe is None else recipe.of_model(model).rate(name or "", batch_size)


def require_start(recipes: Mapping[str, Recipe], name: str | None, init: str | None) -> None:
    """Refuse a fine-tuning recipe without initial weights."""
    recipe = recipes.get(name or "")
    if recipe is not None and recipe.tunes is not None and init is None:
        raise UserError(f"--recipe {name} starts from {recipe.tunes}.")


def fill_in(
    settings: S, given: Mapping[str, str], recipes: Mapping[str, Recipe], name: str | None, left_out: Container[str]
) -> tuple[S, dict[str, str]]:
    """Fill in the settings that were not given from a named recipe, except those in `left_out`.

    `given` has the origin of each setting that the user has set. The second result has that of each setting that is
    set; "recipe NAME" for the recipe's.
    """
    if name is None:
        return settings, dict(given)
    recipe = find_recipe(recipes, name)
    model = getattr(settings, "model", None) if "model" in given else recipe.settings.get("model")
    recipe_settings = recipe.of_model(model).settings
    values = {key: value for key, value in recipe_settings.items() if key not in given and key not in left_out}
    return replace(settings, **values), {**given, **dict.fromkeys(values, f"recipe {name}")}
