"""`paucal predict`: probabilities for images, folders and patterns."""

import csv
import glob
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from PIL import Image
from torch import Tensor

from paucal.cli.arguments import new_parser, parse
from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet
from paucal.data.sources.folder import IMAGE_SUFFIXES
from paucal.data.sources.opening import open_images
from paucal.evaluation.deployed import Deployed, load_deployed
from paucal.runs import write_text
from paucal.settings.options import check_numbers
from paucal.types import UserError
from paucal.verbs.run.console import PlainConsole
from paucal.verbs.run.outputs import check_table
from paucal.verbs.run.room import check_batch
from paucal.wording import showable

DESCRIPTION = """Classify images with the model of a run.
PATHS are image files, folders (searched to any depth), Parquet files, or patterns such as 'photos/*.jpg'."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; returns the exit code."""
    parser = new_parser("predict", DESCRIPTION)
    parser.add_argument("run", type=str, help="run folder")
    parser.add_argument("paths", nargs="+", type=str, help="images, folders or patterns")
    parser.add_argument("--format", type=Literal["csv", "json"], default="csv", help="form of the answer")
    parser.add_argument("--output", "--out", type=str | None, help="file to write; by default standard output")
    parser.add_argument("--batch-size", "-b", type=int, default=64, help="images per forward pass")
    parser.add_argument("--device", type=str, default="cpu", help="cpu, cuda or mps")
    parser.add_argument("--on-bad-image", type=Literal["refuse", "skip"], default="refuse", help="unreadable images")
    values, _ = parse(parser, argv)
    check_numbers(values, {"batch_size": (1, 1 << 20)})
    output = None if values.output is None else check_table(values.output)
    model = load_deployed(values.run, values.device).require_classifier()
    sets = [images for path in values.paths for images in _open(path)]
    for note in (note for images in sets for note in images.notes):
        PlainConsole(stderr=True).print(f"note: {note}", markup=False, soft_wrap=True)
    check_batch(min(values.batch_size, sum(map(len, sets))), model.card.preprocessing.image_size)
    rows = _predict(model, sets, values.batch_size, values.on_bad_image)
    text = _as_json(rows, model.classes) if values.format == "json" else _as_csv(rows, model.classes)
    if output is None:
        # A terminal would obey control characters in names; who reads a pipe wants the names as they are.
        sys.stdout.write(showable(text) if sys.stdout.isatty() else text)
    else:
        write_text(output, text)
    return 0


def _open(path: str) -> Iterator[ImageSet]:
    """Open a path, or everything a pattern stands for."""
    if Path(path).exists() or not glob.has_magic(path):
        yield open_images(path, labelled=False)
        return
    found = sorted(glob.glob(path, recursive=True))
    if not found:
        raise UserError(f"the pattern {path!r} matches no file; check the spelling.")
    images = [name for name in found if _has_images(Path(name))]
    if not images:
        raise UserError(f"the pattern {path!r} matches {len(found)} files, none of which is an image.")
    if len(images) < len(found):
        PlainConsole(stderr=True).print(
            f"{len(found) - len(images)} matches of {path!r} are no images", markup=False, soft_wrap=True
        )
    for name in images:
        yield open_images(name, labelled=False)


def _has_images(path: Path) -> bool:
    """Return whether a match of a pattern is an image, Parquet, or a folder with images somewhere inside."""
    if path.is_dir():
        return any(_has_images(Path(folder, name)) for folder, _, names in os.walk(path) for name in names)
    return path.name.lower().endswith((*IMAGE_SUFFIXES, ".parquet"))


def _predict(model: Deployed, sets: Sequence[ImageSet], batch_size: int, on_bad: str) -> list[tuple[str, Tensor]]:
    names: list[str] = []

    def read() -> Iterator[Image.Image]:
        for images in sets:
            for index, key in enumerate(images.keys):
                try:
                    picture = images.store.read(index)
                except UnreadableImage as problem:
                    if on_bad == "refuse":
                        raise UserError(f"{problem}; leave it out with --on-bad-image skip.") from problem
                    PlainConsole(stderr=True).print(f"skipped: {problem}", markup=False, soft_wrap=True)
                    continue
                names.append(_full_name(images, key))
                yield picture

    return [(names[i], row) for i, row in enumerate(model.classify(read(), batch_size))]


def _full_name(images: ImageSet, key: str) -> str:
    root = Path(images.location)
    return str(root / key) if root.is_dir() else str(root if root.name == key else root.parent / key)


def _as_csv(rows: Sequence[tuple[str, Tensor]], classes: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "predicted", "confidence", *(f"p_{name}" for name in classes)])
    for name, shares in rows:
        values = [f"{share:.6g}" for share in shares.tolist()]
        best = int(shares.argmax())
        writer.writerow([name, classes[best], values[best], *values])
    return text.getvalue()


def _as_json(rows: Sequence[tuple[str, Tensor]], classes: Sequence[str]) -> str:
    answers = [
        {
            "path": name,
            "predicted": classes[int(shares.argmax())],
            "confidence": float(shares.max()),
            "probabilities": dict(zip(classes, map(float, shares), strict=True)),
        }
        for name, shares in rows
    ]
    return json.dumps(answers, indent=2, ensure_ascii=False) + "\n"
