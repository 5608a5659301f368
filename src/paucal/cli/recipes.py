"""`paucal recipes`: list the recipes, which are sets of settings from published trainings for `--recipe NAME`."""

from collections.abc import Mapping, Sequence
from typing import Any

from paucal.cli.arguments import VerbParser, parse

DESCRIPTION = (
    "List the recipes (settings of published trainings) for --recipe of 'paucal train', 'pretrain', 'segment' and "
    "'detect'."
)


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parse(VerbParser("recipes", DESCRIPTION), argv)
    from paucal.runner.plain_console import PlainConsole

    console = PlainConsole(soft_wrap=True)
    for verb, recipes in recipes_by_verb().items():
        console.print(f"[bold]paucal {verb}[/]")
        for name, recipe in recipes.items():
            console.print(f"  [bold]{name}[/]: {recipe.summary}")
            for heading in ("source", "cost", "expected"):
                console.print(f"    {heading}: {getattr(recipe, heading)}", markup=False)
            for flags, score in recipe.also.items():
                console.print(f"    with {flags}: {score}", markup=False)
    return 0


def recipes_by_verb() -> Mapping[str, Mapping[str, Any]]:
    """Return the recipes by verb, then by name."""
    from paucal.recipes import detection, esvit, segmentation, table

    recipes = {"train": table.RECIPES, "pretrain": esvit.RECIPES}
    return recipes | {"segment": segmentation.RECIPES, "detect": detection.RECIPES}
