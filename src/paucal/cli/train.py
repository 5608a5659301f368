"""`paucal train`: from images to a judged model."""

from collections.abc import Sequence

from paucal.cli.arguments import add_settings, new_parser, parse
from paucal.recipes.settings import TrainSettings, setting_fields

DESCRIPTION = """Train a classifier on a folder of images and judge it on images it has not seen.
Everything that is not given is chosen from the data, and the choice is printed with its reason.
Without DATA the built-in digits are used; that takes about a minute on two processor cores."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code, 130 where training was stopped before its end."""
    parser, help_of_data = new_parser("train", DESCRIPTION), setting_fields()["data"].metadata["help"]
    # Two names for one thing: a positional argument that is left out would hide the value of a config.
    parser.add_argument("subject", nargs="?", type=str | None, metavar="DATA", help=help_of_data)
    parser.add_argument("--data", type=str | None, metavar="DATA", help="the same, as in a config")
    parser.add_argument("--config", action="config", help="YAML file of settings; flags win over it")
    parser.add_argument(
        "--resume", nargs="?", const="runs", type=str | None, metavar="RUN", help="go on with a stopped run"
    )
    parser.add_argument("--print-config", action="store_true", help="print all settings with their reasons, and stop")
    add_settings(parser, TrainSettings, skip=["data"])
    values, given = parse(parser, argv)
    if given.pop("subject", None):
        values.data, given["data"] = values.subject, "flag"
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.recipes.launch import Stopped, resume_run, show_config, train_run
    from paucal.recipes.voice import Voice

    voice = Voice()
    changes = {name: getattr(values, name) for name in given if name in setting_fields()}
    if values.print_config:
        print(show_config(TrainSettings(**changes), given), end="")
        return 0
    if "resume" in given:
        result = resume_run(values.resume, voice, changes)
    else:
        result = train_run(TrainSettings(**changes), given, voice)
    return 130 if isinstance(result, Stopped) else 0
