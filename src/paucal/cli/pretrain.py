"""`paucal pretrain`: train a backbone on unlabelled images."""

from collections.abc import Sequence

from paucal.cli.arguments import parse_run
from paucal.cli.elsewhere import run_elsewhere
from paucal.methods.pretraining_settings import PretrainSettings

DESCRIPTION = """Pre-train a backbone on images without labels, by self-distillation of views and regions (EsViT).
Settings that are not given are chosen from the images, and printed with the reason. The run detects and reports
collapse. Without DATA it uses the built-in digits, which takes about two minutes on two CPU cores."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code, 130 if the run was stopped before its end."""
    parsed = parse_run("pretrain", DESCRIPTION, PretrainSettings, argv)
    if (code := run_elsewhere("pretrain", parsed[0], argv)) is not None:
        return code
    from paucal.cli.job import run_job
    from paucal.tasks.pretraining.job import PretrainingJob

    return run_job(PretrainingJob(), PretrainSettings, parsed)
