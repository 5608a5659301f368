"""`paucal train`: from images to a judged model."""

from collections.abc import Sequence

from paucal.cli.arguments import add_settings, flag, new_parser, parse
from paucal.recipes.settings import TrainSettings, setting_fields
from paucal.types import UserError

DESCRIPTION = """Train a classifier on a folder of images and judge it on images it has not seen.
Everything that is not given is chosen from the data, and the choice is printed with its reason.
Without DATA the built-in digits are used; that takes about a minute on two processor cores."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code, 130 where training was stopped before its end."""
    parser = new_parser("train", DESCRIPTION)
    parser.add_argument("data", nargs="?", type=str | None, help=setting_fields()["data"].metadata["help"])
    parser.add_argument("--config", action="config", help="YAML file of settings; flags win over it")
    parser.add_argument(
        "--resume", nargs="?", const="runs", type=str | None, metavar="RUN", help="go on with a stopped run"
    )
    add_settings(parser, TrainSettings, skip=["data"])
    values, given = parse(parser, argv)
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.recipes.launch import resume_run, train_run
    from paucal.recipes.voice import Voice

    voice = Voice()
    if given.pop("resume", None):
        if given:
            names = ", ".join(flag(name) if name != "data" else "DATA" for name in given)
            raise UserError(f"--resume goes on with the settings stored in the run; leave out {names}.")
        result = resume_run(values.resume, voice)
    else:
        settings = TrainSettings(**{name: getattr(values, name) for name in given})
        result = train_run(settings, given, voice)
    return 130 if result is None else 0
