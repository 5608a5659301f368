"""What a named recipe is."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
