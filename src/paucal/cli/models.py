"""`paucal models`: list backbones with their number of parameters and multiply-adds."""

import fnmatch
from collections.abc import Sequence

from rich.progress import track
from rich.table import Table

from paucal.cli.arguments import CommandParser, parse_arguments
from paucal.models.table import TIMM, ListedModel, model_names, stored_table
from paucal.runner.plain_console import PlainConsole
from paucal.types import UserError

DESCRIPTION = (
    "List the backbones that can be trained, each with its number of parameters, its multiply-adds and the size of its "
    "last feature map at the default image size. PATTERN may contain wildcards, as in 'swin*'."
)
# Minimum width in characters of each column, by its heading.
COLUMNS = {"model": 24, "made for": 8, "parameters": 10, "GMACs": 5, "grid": 5, "source": 8, "DrLoc weight": 5}
NUMBER_COLUMNS = ("parameters", "GMACs")


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("models", DESCRIPTION)
    parser.add_argument("pattern", nargs="?", default="*", help="pattern of the names to list")
    parser.add_argument("--ours", action="store_true", help="list only what paucal adds to timm")
    values, _ = parse_arguments(parser, argv)
    pattern = values.pattern if set(values.pattern) & set("*?[") else f"*{values.pattern}*"
    names, known_costs = fnmatch.filter(model_names(), pattern), dict(stored_table())
    unknown = [name for name in names if name not in known_costs]
    if unknown:  # models of a timm that is newer than the stored table
        from paucal.models.measuring import measure
        from paucal.objectives import default_weight

        for name in track(unknown, "measuring", transient=True, disable=len(unknown) < 3):
            known_costs[name] = measure(name, default_weight(name)[0])
    costs = {name: known_costs[name] for name in names}
    if values.ours:
        costs = {name: cost for name, cost in costs.items() if cost.source != TIMM}
    if not costs:
        raise UserError(f"no model name matches {values.pattern!r}; 'paucal models' lists all.")
    console = PlainConsole()
    if not console.is_terminal:  # lines in a file or a pipe have no width limit, and rich would be slow
        rows = [tuple(COLUMNS), *(_table_row(name, cost) for name, cost in costs.items())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        signs = [">" if heading in NUMBER_COLUMNS else "<" for heading in COLUMNS]
        for row in rows:
            cells = zip(row, signs, widths, strict=True)
            print("  ".join(f"{cell:{sign}{width}}" for cell, sign, width in cells))
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading, width in COLUMNS.items():
        table.add_column(
            heading, justify="right" if heading in NUMBER_COLUMNS else "left", min_width=width, overflow="fold"
        )
    for name, cost in costs.items():
        table.add_row(*_table_row(name, cost))
    console.print(table)
    return 0


def _table_row(name: str, cost: ListedModel) -> tuple[str, ...]:
    return (
        name,
        "x".join(map(str, cost.image_size)),
        f"{cost.parameters / 1e6:.2f} M",
        "" if cost.macs is None else f"{cost.macs / 1e9:.3g}",
        "" if cost.grid is None else "x".join(map(str, cost.grid)),
        cost.source,
        f"{cost.drloc_weight:g}",
    )
