"""`paucal serve`: a local web page to try a model on images, or to label images."""

from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, parse_with_settings
from paucal.verbs.serve.settings import ServeSettings

DESCRIPTION = """Open a page in your browser to try a model: drop an image and see its classes with calibrated
probabilities, whether the image resembles the training images, and the evidence for the prediction. No data leaves this
machine. With --label, the page shows unlabelled images, the most useful first; you label each image with one key, and
--save stores the labels. To label without a model, give --classes."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("serve", DESCRIPTION)
    parser.add_argument("run", nargs="?", help="run folder, exported folder, or .onnx file; not needed with --classes")
    values, settings = parse_with_settings(parser, ServeSettings, argv)
    from paucal.runner.console import Console
    from paucal.verbs.serve.launch import serve

    serve(getattr(values, "run", None), settings, Console())
    return 0
