"""What a named recipe is."""

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
    """What a recipe has otherwise for some models.

    Attributes:
        settings: values by name.
        lr_per_512: as in `Recipe`; None for the recipe's.
    """

    settings: Mapping[str, Any]
    lr_per_512: float | None = None


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
        variants: what differs for models whose names begin so; the first that fits.
        tunes: what the recipe trains on from, for people, where its settings make no sense from random weights.
        imagenet_alone: whether "timm" as a start means weights that have seen the labels of ImageNet-1k only.
        also: what other published runs reached, by the flags that make them of this one.
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
    also: Mapping[str, str] = field(default_factory=dict)

    def of_model(self, model: str | None) -> "Recipe":
        """Return the recipe with what it has otherwise for a model."""
        for beginning, variant in self.variants.items():
            if (model or "").startswith(beginning):
                rate = variant.lr_per_512 or self.lr_per_512
                return replace(self, settings={**self.settings, **variant.settings}, lr_per_512=rate)
        return self

    def rate(self, name: str, batch: int) -> tuple[float, str] | None:
        """Return the learning rate for a number of images per step, and why; None where it has none of its own."""
        if self.lr_per_512 is None:
            return None
        reason = f"recipe {name}: {self.lr_per_512:g} for 512 images in a step, here {batch}"
        return self.lr_per_512 * batch / 512, reason


def find_recipe(recipes: Mapping[str, Recipe], name: str) -> Recipe:
    """Return a recipe by its name.

    Raises:
        UserError: there is no such recipe.
    """
    if name not in recipes:
        near = difflib.get_close_matches(name, recipes, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UserError(f"--recipe: {name!r} is unknown, expected one of {', '.join(recipes)}{hint}")
    return recipes[name]


def recipe_rate(
    recipes: Mapping[str, Recipe], name: str | None, model: str | None, batch: int
) -> tuple[float, str] | None:
    """Return the learning rate that a recipe has for a model and a number of images per step, and why."""
    recipe = recipes.get(name or "")
    return None if recipe is None else recipe.of_model(model).rate(name or "", batch)


def require_start(recipes: Mapping[str, Recipe], name: str | None, init: str | None) -> None:
    """Refuse to tune random weights.

    Raises:
        UserError: the recipe trains on from something, and nothing is given.
    """
    recipe = recipes.get(name or "")
    if recipe is not None and recipe.tunes is not None and init is None:
        raise UserError(f"--recipe {name} trains on from {recipe.tunes}.")


def fill_in(
    settings: S, given: Mapping[str, str], recipes: Mapping[str, Recipe], name: str | None, left_out: Container[str]
) -> tuple[S, dict[str, str]]:
    """Fill in what a named recipe says and nobody has given.

    Args:
        settings: as given.
        given: the origin of each setting that was given.
        recipes: by name.
        name: the recipe's; None for none.
        left_out: values of the recipe that mean nothing beside what was given.

    Returns:
        The settings, and the origin of each that was given, "recipe NAME" for the recipe's.

    Raises:
        UserError: there is no such recipe.
    """
    if name is None:
        return settings, dict(given)
    recipe = find_recipe(recipes, name)
    model = getattr(settings, "model", None) if "model" in given else recipe.settings.get("model")
    said = recipe.of_model(model).settings
    values = {key: value for key, value in said.items() if key not in given and key not in left_out}
    return replace(settings, **values), {**given, **dict.fromkeys(values, f"recipe {name}")}
