"""`paucal pretrain`: train a backbone on unlabelled images."""

from collections.abc import Sequence

from paucal.cli.arguments import parse_run_arguments
from paucal.cli.elsewhere import run_elsewhere
from paucal.methods.pretraining_settings import PretrainSettings

DESCRIPTION = """Pre-train a backbone on images without labels, by self-distillation of views and regions (EsViT).
Settings that you do not give are chosen from the images, and printed with the reason. The run detects and reports
collapse. Without DATA, the command trains on the built-in digits, which takes about two minutes on two CPU cores."""


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code, which is 130 if the run was stopped before its end."""
    parsed = parse_run_arguments("pretrain", DESCRIPTION, PretrainSettings, argv)
    if (code := run_elsewhere("pretrain", parsed.values, argv)) is not None:
        return code
    from paucal.cli.job import run_job
    from paucal.tasks.pretraining.job import PretrainingJob

    return run_job(PretrainingJob(), parsed)
