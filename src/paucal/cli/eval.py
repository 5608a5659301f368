"""`paucal eval`: evaluate a trained model on labelled images, boxes or masks, or frozen features by protocols."""

from collections.abc import Sequence

from paucal.cli.arguments import VerbParser, add_settings, parse, settings_among
from paucal.settings.groups import LABELLED
from paucal.verbs.eval.settings import EvalSettings

DESCRIPTION = """Judge the model of a run on labelled images, a detector on boxes, a segmentation network on masks.
Without DATA, or with the run's own images as DATA, it is judged on the run's test images; other images are taken
whole, or their test part where they have one, which is a val part that has only a train part beside it, too. Images
that the run was trained on or chosen by are left out. With --protocol knn linear logistic correspondence few-labels a
frozen backbone is judged instead: a run, a weights file, or any timm model, beside the same architecture with random
weights."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = VerbParser("eval", DESCRIPTION)
    parser.add_argument(
        "run", type=str, metavar="MODEL", help="run folder; for frozen features a file or timm model too"
    )
    parser.add_argument("sources", nargs="*", type=str, metavar="DATA", help=f"labelled images: {LABELLED}")
    add_settings(parser, EvalSettings, skip=["data"])
    values, _ = parse(parser, argv)
    # Loaded only now, because it takes seconds and a mistyped flag should not.
    from paucal.runner.console import Console
    from paucal.verbs.eval.launch import evaluate_model

    evaluate_model(values.run, values.sources, settings_among(values, EvalSettings), Console())
    return 0
