"""The report of a segmentation run: the overlap of each class, and the images where it goes wrong."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paucal.report.explanations import again, cost
from paucal.report.inputs import RunFiles, read_run
from paucal.report.page import NAME, template
from paucal.report.pictures import pictures
from paucal.runs import write_text
from paucal.types import UserError
from paucal.wording import counted, percent

METRICS = "evaluation/test/segmentation.json"
MOST_CLASSES, MOST_TEXT = 300, 300
FEW_IMAGES = 20
CAPTIONS = {
    "worst_images": "The test images with the least overlap: image, labels, answers, and where they differ (red).",
    "best_images": "The test images with the most overlap.",
    "train_batch": "Crops as the network sees them in training, above their masks.",
}


@dataclass(frozen=True)
class ClassRow:
    """The scores of one class, as text."""

    name: str
    iou: str
    interval: str
    pixels: str


@dataclass(frozen=True)
class Found:
    """What a run has reached on its test images; everything may be missing.

    Attributes:
        images: their number.
        mean_iou: with its interval, as text.
        accuracy: share of the pixels that are right, with its interval.
        classes: the weakest first.
        unseen: classes that no test mask shows.
    """

    images: int = 0
    mean_iou: tuple[str, str] = ("", "")
    accuracy: tuple[str, str] = ("", "")
    classes: Sequence[ClassRow] = ()
    unseen: Sequence[str] = ()


def write_segmentation_report(run: Path) -> Path:
    """Write `report.html` into the folder of a run of `paucal segment` from what lies there, and return its path.

    Raises:
        UserError: the folder does not exist, or one of its files is too large or damaged.
    """
    files = read_run(run)
    found, shown = read_found(files), pictures(files)
    page = template("segmentation.html").render(
        title=files.summary.title or f"Run {run.resolve().name}",
        files=files,
        summary=files.summary,
        found=found,
        headline=headline(files, found),
        warnings=warnings(found),
        table=table(files),
        captions=CAPTIONS,
        pictures=shown,
        shell_run=shlex.quote(str(run)),
        again=again(files),
    )
    path = run / NAME
    write_text(path, page)
    return path


def read_found(files: RunFiles) -> Found:
    """Read the scores of a run.

    Raises:
        UserError: they are not what such a run writes.
    """
    path = files.run.path / METRICS
    if not path.is_file():
        return Found()
    content = files.run.read_json(METRICS)
    try:
        rows = sorted(content["classes"][:MOST_CLASSES], key=lambda row: (row["value"] is None, row["value"] or 0.0))
        return Found(
            images=int(content["images"]),
            mean_iou=_score(content["mean_iou"]),
            accuracy=_score(content["pixel_accuracy"]),
            classes=[ClassRow(str(row["class"])[:MOST_TEXT], *_score(row), f"{int(row['pixels']):,}") for row in rows],
            unseen=[str(name)[:MOST_TEXT] for name in content["unseen"][:MOST_CLASSES]],
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise UserError(f"{str(path)!r} is damaged ({problem!r}): restore it or train again.") from problem


def headline(files: RunFiles, found: Found) -> list[str]:
    """Return the result in a few sentences."""
    if not found.images:
        return ["The model has not been judged on test images yet."]
    words = [
        f"On {counted(found.images, 'test image')} that were kept away from its training, the areas that the model "
        f"found and those of the labels share {found.mean_iou[0]} of what both cover together (mean IoU over the "
        f"classes), and {found.accuracy[0]} of the pixels have the right class."
    ]
    if found.mean_iou[1]:
        words.append(
            f"With this many images, the mean IoU on further images of the same kind most likely lies between "
            f"{found.mean_iou[1]} % (95 % interval over images)."
        )
    if not files.summary.selected:
        words.append("No images were kept for validation: the model is that of the last epoch.")
    return words


def warnings(found: Found) -> list[str]:
    """Return what a careful reader should know before trusting the result; often empty."""
    words = []
    if 0 < found.images < FEW_IMAGES:
        words.append(f"{counted(found.images, 'test image')} are few: the interval is as rough as the score.")
    if found.unseen:
        names = ", ".join(found.unseen[:8]) + (", ..." if len(found.unseen) > 8 else "")
        words.append(f"No test mask shows {names}: nothing is known of how well the model finds it.")
    return words


def table(files: RunFiles) -> Mapping[str, str]:
    """Return what was trained as names and texts, without what is unknown."""
    summary = files.summary
    rows = {
        "model": summary.model,
        "parameters": None if summary.parameters is None else f"{summary.parameters:,}",
        "head": summary.method,
        "epochs": None if summary.epochs is None else f"{summary.epochs:g}",
        "best epoch": None if summary.best_epoch is None or not summary.selected else f"{summary.best_epoch:g}",
        **cost(files),
        "images": ", ".join(f"{part.images} {part.name}" for part in summary.parts) or None,
    }
    return {name: value for name, value in rows.items() if value is not None}


def _score(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return a score and its interval as text."""
    middle, low, high = (None if value[name] is None else float(value[name]) for name in ("value", "low", "high"))
    if middle is None:
        return "none", ""
    return percent(middle), "" if low is None or high is None else f"{100 * low:.1f} and {100 * high:.1f}"
