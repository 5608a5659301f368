"""`paucal export`: write a trained model for other programs."""

from collections.abc import Sequence

from paucal.cli.arguments import CommandParser, parse_with_settings
from paucal.verbs.export.settings import ExportSettings

DESCRIPTION = """Write the model of a run for other programs: weights that timm and the Hugging Face hub read, a
torch.export program, an ONNX model, or an 8-bit model. Each exported model is compared with the original on real
images before it is kept."""


def run(argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    parser = CommandParser("export", DESCRIPTION)
    parser.add_argument("run", help="run folder")
    values, settings = parse_with_settings(parser, ExportSettings, argv)
    from paucal.runner.console import Console
    from paucal.verbs.export.launch import export_all

    export_all(values.run, settings, Console())
    return 0
