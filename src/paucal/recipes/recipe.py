"""The definition of a recipe, a named set of settings, and how a run uses it."""

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
    """Settings in which a recipe differs for some models.

    Attributes:
        settings: Settings by name.
        lr_per_512: Learning rate, as in `Recipe`; None for the recipe's value.
    """

    settings: Mapping[str, Any]
    lr_per_512: float | None = None


@dataclass(frozen=True)
class Recipe:
    """A named set of settings.

    Attributes:
        summary: Description in one line.
        source: Where the settings come from, such as a section of a paper.
        cost: What a run takes, such as epochs, image size and GPUs.
        expected: Published scores, or where to find scores.
        settings: Settings by name; all other settings are chosen from the data.
        lr_per_512: Learning rate for 512 images per step, scaled in proportion for others; None for the default rule.
        variants: Settings that differ for some models, by the beginning of the model's name; the first match is used.
        tunes: Description of the weights that the recipe fine-tunes, for messages; None if it may start from random
            weights.
        imagenet_alone: Whether `--init timm` means weights that were trained only on the labels of ImageNet-1k.
        imagenet_crop: Whether its authors' code resizes to 256 pixels and evaluates the middle 224, for every model.
        also: Published scores of further runs, by the flags to add to this recipe.
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
        """Return the recipe with the settings for a model (None if the model is not chosen yet)."""
        for beginning, variant in self.variants.items():
            if (model or "").startswith(beginning):
                rate = variant.lr_per_512 or self.lr_per_512
                return replace(self, settings={**self.settings, **variant.settings}, lr_per_512=rate)
        return self

    def rate(self, name: str, batch_size: int) -> tuple[float, str] | None:
        """Return the learning rate for `batch_size` images per step, and the reason; None if the recipe has no rate."""
        if self.lr_per_512 is None:
            return None
        reason = f"recipe {name}: {self.lr_per_512:g} for 512 images in a step, here {batch_size}"
        return self.lr_per_512 * batch_size / 512, reason


def find_recipe(recipes: Mapping[str, Recipe], name: str) -> Recipe:
    """Return a recipe by its name; raise a UserError for an unknown name."""
    if name not in recipes:
        similar = difflib.get_close_matches(name, recipes, n=1)
        hint = f"; did you mean {similar[0]!r}?" if similar else "."
        raise UserError(f"--recipe: {name!r} is unknown, expected one of {', '.join(recipes)}{hint}")
    return recipes[name]


def recipe_rate(
    recipes: Mapping[str, Recipe], name: str | None, model: str | None, batch_size: int
) -> tuple[float, str] | None:
    """Return a recipe's learning rate for a model and `batch_size` images per step, and the reason.

    None if `name` is None, or if the recipe has no rate.
    """
    recipe = recipes.get(name or "")
    return None if recipe is None else recipe.of_model(model).rate(name or "", batch_size)


def require_start(recipes: Mapping[str, Recipe], name: str | None, init: str | None) -> None:
    """Raise a UserError if a recipe for fine-tuning is used without `--init`."""
    recipe = recipes.get(name or "")
    if recipe is not None and recipe.tunes is not None and init is None:
        raise UserError(f"--recipe {name} starts from {recipe.tunes}.")


def fill_in(
    settings: S, given: Mapping[str, str], recipes: Mapping[str, Recipe], name: str | None, left_out: Container[str]
) -> tuple[S, dict[str, str]]:
    """Take the settings that were not given from a recipe, except those in `left_out`.

    Args:
        settings: Settings of a run.
        given: Origin of each setting that the user has given.
        recipes: Recipes by name.
        name: Name of the recipe; None for no recipe.
        left_out: Names of settings that are not taken from the recipe.

    Returns:
        The settings, and the origin of each setting that is given or comes from the recipe ("recipe NAME").
    """
    if name is None:
        return settings, dict(given)
    recipe = find_recipe(recipes, name)
    model = getattr(settings, "model", None) if "model" in given else recipe.settings.get("model")
    recipe_settings = recipe.of_model(model).settings
    values = {key: value for key, value in recipe_settings.items() if key not in given and key not in left_out}
    return replace(settings, **values), {**given, **dict.fromkeys(values, f"recipe {name}")}
