"""`paucal models`: the backbones, their size and cost."""

import fnmatch
from collections.abc import Sequence

import timm
from rich.progress import track
from rich.table import Table

import paucal.backbones  # registers our models
from paucal.backbones.model_table import Measured, describe, is_ours, source_of, stored
from paucal.cli.arguments import VerbParser, parse
from paucal.objectives import default_weight
from paucal.runner.plain_console import PlainConsole
from paucal.types import UserError

DESCRIPTION = (
    "List backbones with parameters, multiply-adds and last grid at their own image size. PATTERN may hold wildcards, "
    "for instance 'swin*'; any of them can be trained."
)
COLUMNS = {"model": 24, "made for": 8, "parameters": 10, "GMACs": 5, "grid": 5, "source": 8, "DrLoc weight": 5}
WIDTH = 160
assert paucal.backbones


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("models", DESCRIPTION)
    parser.add_argument("pattern", nargs="?", type=str, default="*", help="names to list")
    parser.add_argument("--ours", action="store_true", help="list only what paucal adds to timm")
    values, _ = parse(parser, argv)
    names = _names(values.pattern, values.ours)
    console = PlainConsole()
    if not console.is_terminal:
        console = PlainConsole(width=WIDTH)  # a file or a pipe has no width to fit
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading, width in COLUMNS.items():
        right = heading in ("parameters", "GMACs")
        table.add_column(heading, justify="right" if right else "left", min_width=width, overflow="fold")
    unknown = [name for name in names if name not in stored()]
    found = {name: describe(name) for name in track(unknown, "measuring", transient=True, disable=len(unknown) < 3)}
    for name in names:
        table.add_row(*_row(name, found.get(name) or describe(name)))
    console.print(table)
    return 0


def _names(pattern: str, ours: bool) -> list[str]:
    wanted = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    names = [name for name in timm.list_models() if fnmatch.fnmatch(name, wanted) and (is_ours(name) or not ours)]
    if not names:
        raise UserError(f"no model is called like {pattern!r}; 'paucal models' lists all.")
    return names


def _row(name: str, one: Measured) -> tuple[str, ...]:
    return (
        name,
        "x".join(map(str, one.image_size)),
        f"{one.parameters / 1e6:.2f} M",
        "" if one.macs is None else f"{one.macs / 1e9:.3g}",
        "" if one.grid is None else "x".join(map(str, one.grid)),
        source_of(name),
        f"{default_weight(name)[0]:g}",
    )
