"""`paucal eval`: evaluate a trained model on labelled images, boxes or masks, or the features of a frozen backbone."""

from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, parse_with_settings
from paucal.settings.shared import DATA_HELP
from paucal.verbs.eval.settings import EvalSettings

DESCRIPTION = """Evaluate the model of a run on labelled images, a detector on boxes, a segmentation network on masks.
Without DATA, or if DATA is the data set of the run, the run's test images are used. For another data set, the test
split is used (the validation split if there is no test split), or else all images. Images that were used to train or
select the model are left out. --protocol (knn, linear, logistic, correspondence or few-labels) evaluates a frozen
backbone instead, which can be the backbone of a run, a weights file, or any timm model. The backbone is compared with
the same architecture with random weights."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("eval", DESCRIPTION)
    parser.add_argument("run", metavar="MODEL", help="run folder; with --protocol also a weights file or timm model")
    parser.add_argument("sources", nargs="*", metavar="DATA", help=f"labelled images: {DATA_HELP}")
    values, settings = parse_with_settings(parser, EvalSettings, argv, skip=["data"])
    from paucal.runner.console import Console
    from paucal.verbs.eval.launch import evaluate_model

    evaluate_model(values.run, values.sources, settings, Console())
    return 0
