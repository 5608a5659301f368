"""`paucal pretrain`: from unlabelled images to a backbone."""

from collections.abc import Sequence

from paucal.cli.arguments import add_settings, new_parser, parse
from paucal.recipes.pretraining.settings import PretrainSettings

DESCRIPTION = """Pre-train a backbone on images without labels, by self-distillation of views and regions (EsViT).
Everything that is not given is chosen from the images, and the choice is printed with its reason. The run watches
itself and says when its networks collapse. Without DATA the built-in digits are used; that takes about two minutes on
two processor cores."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code, 130 where the run was stopped before its end."""
    parser = new_parser("pretrain", DESCRIPTION)
    help_of_data = PretrainSettings.__dataclass_fields__["data"].metadata["help"]
    # Two names for one thing: a positional argument that is left out would hide the value of a config.
    parser.add_argument("subject", nargs="?", type=str | None, metavar="DATA", help=help_of_data)
    parser.add_argument("--data", type=str | None, metavar="DATA", help="the same, as in a config")
    parser.add_argument("--config", action="config", help="YAML file of settings; flags win over it")
    parser.add_argument(
        "--resume", nargs="?", const="runs", type=str | None, metavar="RUN", help="go on with a stopped run"
    )
    parser.add_argument("--print-config", action="store_true", help="print all settings with their reasons, and stop")
    add_settings(parser, PretrainSettings, skip=["data"])
    values, given = parse(parser, argv)
    if given.pop("subject", None):
        values.data, given["data"] = values.subject, "flag"
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.recipes.pretraining.launch import Stopped, pretrain_run, resume_pretraining, show_config
    from paucal.recipes.voice import Voice

    voice = Voice()
    changes = {name: getattr(values, name) for name in given if name in PretrainSettings.__dataclass_fields__}
    if values.print_config:
        print(show_config(PretrainSettings(**changes), given), end="")
        return 0
    if "resume" in given:
        result = resume_pretraining(values.resume, voice, changes)
    else:
        result = pretrain_run(PretrainSettings(**changes), given, voice)
    return 130 if isinstance(result, Stopped) else 0
