"""`paucal pretrain`: from unlabelled images to a backbone."""

from collections.abc import Sequence

from paucal.cli.arguments import parse_run
from paucal.methods.pretraining_settings import PretrainSettings

DESCRIPTION = """Pre-train a backbone on images without labels, by self-distillation of views and regions (EsViT).
Everything that is not given is chosen from the images, and the choice is printed with its reason. The run watches
itself and says when its networks collapse. Without DATA the built-in digits are used; that takes about two minutes on
two processor cores."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code, 130 where the run was stopped before its end."""
    values, given, changes = parse_run("pretrain", DESCRIPTION, PretrainSettings, argv)
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.runner.console import Console
    from paucal.runner.life import Stopped, begin, resume, show_config
    from paucal.tasks.pretraining.job import PretrainingJob

    if values.print_config:
        print(show_config(PretrainingJob(), PretrainSettings(**changes), given), end="")
        return 0
    if "resume" in given:
        result = resume(PretrainingJob(), values.resume, Console(), changes)
    else:
        result = begin(PretrainingJob(), PretrainSettings(**changes), given, Console())
    return 130 if isinstance(result, Stopped) else 0
