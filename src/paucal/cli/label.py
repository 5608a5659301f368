"""`paucal label`: label maps from a teacher."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from paucal.cli.arguments import add_settings, new_parser, parse
from paucal.recipes.labeling import LEVEL, label_images, open_teacher
from paucal.recipes.prepare import load_images
from paucal.recipes.settings import TrainSettings, setting_fields
from paucal.recipes.voice import Voice
from paucal.types import UserError

DESCRIPTION = """Ask a trained classifier what it sees in every part of every image.
The maps are what 'paucal train --method token-labeling --labels' learns from. The teacher is tried on labelled images
first. A call that was interrupted can be made again and goes on."""
DATA_FLAGS = ("classes", "data_root", "download", "on_bad_image")


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = new_parser("label", DESCRIPTION)
    parser.add_argument("data", type=str, help=setting_fields()["data"].metadata["help"])
    parser.add_argument("--teacher", type=str, required=True, help="run folder, or a timm model with its weights")
    parser.add_argument("--output", "--out", type=str, required=True, help="folder for the maps")
    parser.add_argument("--top-k", type=int, default=5, help="classes kept at each cell")
    parser.add_argument(
        "--img-size", type=int, nargs="+", metavar="SIZE", help="pixels the teacher looks at images with"
    )
    parser.add_argument("--min-accuracy", type=float, default=LEVEL, help="what the teacher must reach to go on")
    parser.add_argument("--batch-size", "-b", type=int, default=32, help="images per forward pass")
    parser.add_argument("--workers", "-j", type=int, default=0, help="processes that load images")
    parser.add_argument("--device", type=str, default="cpu", help="cpu, cuda or mps")
    add_settings(parser, TrainSettings, skip=[name for name in setting_fields() if name not in DATA_FLAGS])
    values, _ = parse(parser, argv)
    if values.batch_size < 1 or values.workers < 0 or values.top_k < 1:
        raise UserError("--batch-size and --top-k must be at least 1 and --workers at least 0; correct them.")
    if not 0 <= values.min_accuracy <= 1:
        raise UserError(f"--min-accuracy is {values.min_accuracy:g}; give a share from 0 to 1.")
    voice = Voice(Console(highlight=False))
    settings = TrainSettings(data=values.data, **{name: getattr(values, name) for name in DATA_FLAGS})
    with voice.progress("reading images") as advance:
        images = load_images(settings, advance)
    teacher = open_teacher(values.teacher, values.img_size, values.device)
    label_images(
        images,
        teacher,
        Path(values.output).expanduser(),
        voice,
        values.top_k,
        values.min_accuracy,
        values.batch_size,
        values.workers,
    )
    return 0
