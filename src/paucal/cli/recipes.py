"""`paucal recipes`: the named settings for `--recipe` of `paucal train`, `pretrain`, `segment` and `detect`."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, parse


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parse(
        VerbParser(
            "recipes", "List the named settings of 'paucal train', 'pretrain', 'segment' and 'detect' --recipe NAME."
        ),
        argv,
    )
    from paucal.recipes import detection, esvit, segmentation
    from paucal.recipes import table as published
    from paucal.runner.plain_console import PlainConsole

    console = PlainConsole(soft_wrap=True)
    for verb, recipes in (
        ("train", published.RECIPES),
        ("pretrain", esvit.RECIPES),
        ("segment", segmentation.RECIPES),
        ("detect", detection.RECIPES),
    ):
        console.print(f"[bold]paucal {verb}[/]")
        for name, recipe in recipes.items():
            console.print(f"  [bold]{name}[/]: {recipe.summary}")
            for heading in ("source", "cost", "expected"):
                console.print(f"    {heading}: {getattr(recipe, heading)}", markup=False)
            for flags, score in recipe.also.items():
                console.print(f"    with {flags}: {score}", markup=False)
    return 0
