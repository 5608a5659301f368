"""`paucal recipes`: list the recipes, the sets of published training settings that `--recipe NAME` applies."""

from collections.abc import Mapping, Sequence
from typing import Any

from paucal.cli.arguments import CommandParser, parse_arguments

DESCRIPTION = (
    "List the recipes (published training settings) that --recipe of 'paucal train', 'pretrain', 'segment' and "
    "'detect' accepts."
)


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parse_arguments(CommandParser("recipes", DESCRIPTION), argv)
    from paucal.runner.plain_console import PlainConsole

    console = PlainConsole(soft_wrap=True)
    for verb, recipes in recipes_by_command().items():
        console.print(f"[bold]paucal {verb}[/]")
        for name, recipe in recipes.items():
            console.print(f"  [bold]{name}[/]: {recipe.summary}")
            for heading in ("source", "cost", "expected"):
                console.print(f"    {heading}: {getattr(recipe, heading)}", markup=False)
            for flags, score in recipe.scores_by_flags.items():
                console.print(f"    with {flags}: {score}", markup=False)
    return 0


def recipes_by_command() -> Mapping[str, Mapping[str, Any]]:
    """Return the recipes of each training command as {command: {recipe name: recipe}}."""
    from paucal.recipes import detection, esvit, segmentation, table

    recipes = {"train": table.RECIPES, "pretrain": esvit.RECIPES}
    return recipes | {"segment": segmentation.RECIPES, "detect": detection.RECIPES}
