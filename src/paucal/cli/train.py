"""`paucal train`: train and evaluate a model on labelled images."""

from collections.abc import Sequence

from paucal.cli.arguments import parse_run_arguments
from paucal.cli.elsewhere import run_elsewhere
from paucal.methods.training_settings import TrainSettings

DESCRIPTION = """Train a classifier on a folder of images and evaluate the classifier on held-out test images.
Settings that you do not give are chosen from the data, and printed with the reason.
Without DATA, the command trains on the built-in digits, which takes about a minute on two CPU cores. With --target
COLUMN, the model predicts a number instead of a class."""


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code, which is 130 if the run was stopped before its end."""
    values, given, given_settings = parsed = parse_run_arguments("train", DESCRIPTION, TrainSettings, argv)
    if (code := run_elsewhere("train", values, argv)) is not None:
        return code
    from paucal.cli.job import run_job
    from paucal.runner.console import Console
    from paucal.runner.life import Stopped
    from paucal.tasks.classification.folds import train_folds
    from paucal.tasks.train import read_target, select_job

    if values.folds is not None and values.target is None and "resume" not in given and not values.print_config:
        result = train_folds(TrainSettings(**given_settings), given, Console())
        return 130 if isinstance(result, Stopped) else 0
    job = select_job(read_target(values.resume) if "resume" in given else given_settings.get("target"))
    return run_job(job, parsed)
