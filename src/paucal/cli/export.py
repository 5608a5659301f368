"""`paucal export`: write a trained model for other programs."""

from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, add_settings, build_settings, parse_arguments
from paucal.verbs.export.settings import ExportSettings

DESCRIPTION = """Write the model of a run for other programs: weights that timm and the Hugging Face hub read, a
torch.export program, an ONNX model, or an 8-bit model. Each exported model is compared with the original on real
images before it is kept."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("export", DESCRIPTION)
    parser.add_argument("run", help="run folder")
    add_settings(parser, ExportSettings)
    values, _ = parse_arguments(parser, argv)
    from paucal.runner.console import Console
    from paucal.verbs.export.launch import export_all

    export_all(values.run, build_settings(values, ExportSettings), Console())
    return 0
