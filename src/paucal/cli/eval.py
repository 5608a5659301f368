"""`paucal eval`: evaluate a trained model on labelled images, boxes or masks, or frozen features by protocols."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.settings.groups import LABELLED
from paucal.verbs.eval.settings import EvalSettings

DESCRIPTION = """Evaluate the model of a run on labelled images, a detector on boxes, a segmentation network on masks.
Without DATA, or with the run's own images as DATA, the run's test images are used. Of other images, the test part is
used if there is one (or a val part beside only a train part), else all of them. Images used for training or selecting
the run are left out. With --protocol knn linear logistic correspondence few-labels a frozen backbone is evaluated
instead: a run, a weights file, or any timm model, compared with the same architecture with random weights."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("eval", DESCRIPTION)
    parser.add_argument("run", metavar="MODEL", help="run folder; for frozen features a file or timm model too")
    parser.add_argument("sources", nargs="*", metavar="DATA", help=f"labelled images: {LABELLED}")
    add_settings(parser, EvalSettings, skip=["data"])
    values, _ = parse(parser, argv)
    from paucal.runner.console import Console
    from paucal.verbs.eval.launch import evaluate_model

    evaluate_model(values.run, values.sources, settings_among(values, EvalSettings), Console())
    return 0
