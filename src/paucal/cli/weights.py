"""`paucal weights`: trained weights on this machine, and how they are brought to another one."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.settings.options import setting_fields
from paucal.types import UserError
from paucal.verbs.weights.settings import WeightsSettings

DESCRIPTION = """Bring trained weights to a machine without a network, and see which are there.
'list' names what is on this machine, with size, licence and use. 'pack NAME' writes weights, or those of a file, into
one archive. 'add FILE' checks such an archive, or a weights file with --model and --licence, and keeps it;
'paucal train' then compares it with the others. 'remove NAME' removes what was added."""
WIDTH = 160  # characters
ACTIONS = ("list", "add", "pack", "remove")


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("weights", DESCRIPTION)
    parser.add_argument("action", type=str, metavar="ACTION", help=f"one of {', '.join(ACTIONS)}")
    parser.add_argument("subject", nargs="?", type=str, metavar="NAME", help="weights by name, or a file")
    add_settings(parser, WeightsSettings)
    values, given = parse(parser, argv)
    if values.action not in ACTIONS:
        raise UserError(f"unknown action {values.action!r}; expected one of {', '.join(ACTIONS)}.")
    if (values.action == "list") != (values.subject is None):
        raise UserError("'paucal weights list' takes no name; add takes a FILE, pack and remove take a NAME.")
    flags = [name for name in given if name in setting_fields(WeightsSettings)]
    if values.action in ("list", "remove") and flags:
        raise UserError(f"'paucal weights {values.action}' takes no flags: leave --{flags[0].replace('_', '-')} out.")
    if values.action == "list":
        _list()
        return 0
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.runner.console import Console
    from paucal.verbs.weights.launch import add_file, pack, remove_weights

    console, settings = Console(), settings_among(values, WeightsSettings)
    if values.action == "remove":
        console.say(f"removed {values.subject}, {remove_weights(values.subject) / 1e6:.0f} MB")
    else:
        {"add": add_file, "pack": pack}[values.action](values.subject, settings, console)
    return 0


def _list() -> None:
    from paucal.runner.plain_console import PlainConsole
    from paucal.verbs.weights.listing import list_weights, weights_table

    console = PlainConsole()
    if not console.is_terminal:
        console = PlainConsole(width=WIDTH)  # a file or a pipe has no width to fit
    console.print(weights_table(list_weights()))
