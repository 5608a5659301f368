"""`paucal weights`: list the pretrained weights on this machine, and copy weights to another machine."""

from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, add_settings, build_settings, parse_arguments
from paucal.settings.options import setting_fields
from paucal.types import UserError
from paucal.verbs.weights.settings import WeightsSettings

DESCRIPTION = """List pretrained weights on this machine, and copy weights to a machine without a network.
'list' shows the weights on this machine with their size, licence and use. 'pack NAME' writes weights (a name in the
list, or a file) into one archive. 'add FILE' checks and stores such an archive, or a weights file if you give --model
and --licence; 'paucal train' can then choose these weights. 'remove NAME' removes added weights."""
FILE_WIDTH = 160  # characters per line of a list that is written to a file or a pipe
ACTIONS = ("list", "add", "pack", "remove")


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("weights", DESCRIPTION)
    parser.add_argument("action", help=f"one of {', '.join(ACTIONS)}")
    parser.add_argument("subject", nargs="?", metavar="NAME", help="weights by name, or a file")
    add_settings(parser, WeightsSettings)
    values, given = parse_arguments(parser, argv)
    if values.action not in ACTIONS:
        raise UserError(f"unknown action {values.action!r}; expected one of {', '.join(ACTIONS)}.")
    if (values.action == "list") != (values.subject is None):
        raise UserError("'paucal weights list' takes no name; 'add' needs a FILE, 'pack' and 'remove' need a NAME.")
    flags = [name for name in given if name in setting_fields(WeightsSettings)]
    if values.action in ("list", "remove") and flags:
        raise UserError(f"'paucal weights {values.action}' takes no flags: remove --{flags[0].replace('_', '-')}.")
    if values.action == "list":
        _print_list()
        return 0
    from paucal.runner.console import Console
    from paucal.verbs.weights.launch import add_weights_file, pack, remove_weights

    console, settings = Console(), build_settings(values, WeightsSettings)
    if values.action == "remove":
        console.say(f"removed {values.subject}, {remove_weights(values.subject) / 1e6:.0f} MB")
    else:
        {"add": add_weights_file, "pack": pack}[values.action](values.subject, settings, console)
    return 0


def _print_list() -> None:
    from rich.table import Table

    from paucal.runner.plain_console import PlainConsole
    from paucal.verbs.weights.listing import list_weights

    console = PlainConsole()
    if not console.is_terminal:
        console = PlainConsole(width=FILE_WIDTH)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("weights", "where", "MB", "licence", "used by", "source"):
        table.add_column(heading, justify="right" if heading == "MB" else "left", no_wrap=heading != "source")
    for row in list_weights():
        size = f"{row.size / 1e6:.0f}"
        table.add_row(row.name, row.place or "not here", size, row.licence, row.use, row.source)
    console.print(table)
