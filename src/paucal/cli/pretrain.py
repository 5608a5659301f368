"""`paucal pretrain`: from unlabelled images to a backbone."""

from collections.abc import Sequence

from paucal.cli.arguments import parse_run
from paucal.cli.elsewhere import run_elsewhere
from paucal.methods.pretraining_settings import PretrainSettings

DESCRIPTION = """Pre-train a backbone on images without labels, by self-distillation of views and regions (EsViT).
Everything that is not given is chosen from the images, and the choice is printed with its reason. The run watches
itself and says when its networks collapse. Without DATA the built-in digits are used; that takes about two minutes on
two processor cores."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code, 130 where the run was stopped before its end."""
    parsed = parse_run("pretrain", DESCRIPTION, PretrainSettings, argv)
    if (code := run_elsewhere("pretrain", parsed[0], argv)) is not None:
        return code
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.cli.job import run_job
    from paucal.tasks.pretraining.job import PretrainingJob

    return run_job(PretrainingJob(), PretrainSettings, parsed)
