"""`paucal recipes`: the named settings that `paucal train --recipe` takes."""

from collections.abc import Sequence

from paucal.cli.arguments import new_parser, parse


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parse(new_parser("recipes", "List the named settings of 'paucal train --recipe NAME'."), argv)
    from rich.console import Console

    from paucal.recipes.published import RECIPES

    console = Console(highlight=False, soft_wrap=True)
    for name, recipe in RECIPES.items():
        console.print(f"[bold]{name}[/]: {recipe.summary}")
        for heading in ("source", "cost", "expected"):
            console.print(f"    {heading}: {getattr(recipe, heading)}", markup=False)
    return 0
