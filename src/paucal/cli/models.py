"""`paucal models`: names of backbones."""

import fnmatch
from collections.abc import Sequence

import timm
from rich.console import Console
from rich.table import Table

from paucal.backbones import small
from paucal.cli.arguments import new_parser, parse
from paucal.objectives import default_weight
from paucal.types import UserError

DESCRIPTION = "List backbones. PATTERN may hold wildcards, for instance 'swin*'; any timm model can be trained."
OURS = (small.__name__,)


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = new_parser("models", DESCRIPTION)
    parser.add_argument("pattern", nargs="?", type=str, default="*", help="names to list")
    values, _ = parse(parser, argv)
    pattern = values.pattern if any(c in values.pattern for c in "*?[") else f"*{values.pattern}*"
    names = [name for name in timm.list_models() if fnmatch.fnmatch(name, pattern)]
    if not names:
        raise UserError(f"no model is called like {values.pattern!r}; 'paucal models' lists all.")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("model", "made for", "source", "DrLoc weight"):
        table.add_column(heading)
    for name in names:
        config = timm.get_pretrained_cfg(name)
        size = "x".join(map(str, config.input_size[1:])) if config else ""
        source = "paucal" if timm.model_entrypoint(name).__module__ in OURS else "timm"
        table.add_row(name, size, source, f"{default_weight(name)[0]:g}")
    Console(highlight=False).print(table)
    return 0
