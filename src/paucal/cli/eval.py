"""`paucal eval`: evaluate a trained model on labelled images, boxes or masks, or the features of a frozen backbone."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.settings.groups import LABELLED_DATA_HELP
from paucal.verbs.eval.settings import EvalSettings

DESCRIPTION = """Evaluate the model of a run on labelled images, a detector on boxes, a segmentation network on masks.
Without DATA, or if DATA are the images of the run, the run's test images are used. Of other data sets, the test split
is used (or a validation split beside only a training split), else all images. Images that were used to train the model
or to select it are left out. With --protocol knn linear logistic correspondence few-labels a frozen backbone is
evaluated instead: a run, a weights file, or any timm model, compared with the same architecture with random weights."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("eval", DESCRIPTION)
    parser.add_argument("run", metavar="MODEL", help="run folder; with --protocol also a weights file or timm model")
    parser.add_argument("sources", nargs="*", metavar="DATA", help=f"labelled images: {LABELLED_DATA_HELP}")
    add_settings(parser, EvalSettings, skip=["data"])
    values, _ = parse(parser, argv)
    from paucal.runner.console import Console
    from paucal.verbs.eval.launch import evaluate_model

    evaluate_model(values.run, values.sources, settings_among(values, EvalSettings), Console())
    return 0
