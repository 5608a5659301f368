"""The pictures of a report, as data that lies inside the page."""

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from paucal.evaluation.curves import curves_figure, drawn_columns
from paucal.evaluation.multi_label_plots import class_precision_figure
from paucal.evaluation.multi_label_results import MultiLabelReport
from paucal.evaluation.plots import confusion_figure, per_class_figure
from paucal.report.explanations import kept_epoch
from paucal.report.inputs import RunFiles
from paucal.types import UserError

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PICTURE_BYTES = 8 * 2**20
MAX_PAGE_BYTES = 48 * 2**20
DOTS_PER_INCH = 110

CAPTIONS = {
    "curves": "How the losses and the scores went over the epochs.",
    "confusion": "Which class was taken for which: each row is a true class, each column an answer.",
    "per_class": "How many images of each class were found, the weakest class first.",
    "reliability": "Does confidence mean anything? Bars on the dashed line: an answer given with 80 % is "
    "right in 80 % of the cases. Bars below it: the model is too sure of itself.",
    "health": "Do the networks still tell images apart? Entropies at the dotted line, a spread near 0 or a rank near 1 "
    "mean that they do not.",
    "precision_recall": "Of each class, how many answers are right when so many of its images are to be found. The dot "
    "is where the threshold lies, the dashed line is chance.",
    "train_batch": "Images as the networks see them in training.",
    "mistakes_attribution": "What the model saw in its surest wrong answers: bright is what spoke for the answer, and "
    "beside it for the label.",
    "eval_batch": "Images exactly as the finished model sees them.",
    "mistakes": "The wrong answers the model was surest of. Check their labels first.",
}
CAPTIONS_OF_SEVERAL = {
    "per_class": "How far the images of each class stand above the others, the weakest class first.",
    "mistakes": "Where the model contradicts a label most surely: many of these are labels that were forgotten.",
}


@dataclass(frozen=True)
class Picture:
    """One picture: the name of its file, a sentence about it, and its content as a data URI."""

    name: str
    caption: str
    uri: str


def pictures(files: RunFiles) -> dict[str, Picture]:
    """Return the pictures of a run by name: those in `plots/`, and those that can be drawn from its tables.

    Raises:
        UserError: a file in `plots/` is no PNG, or they are too large to be put into one page.
    """
    stored = {path.stem: path for path in sorted(files.run.plots.glob("*.png")) if path.is_file()}
    content = {name: _read(path) for name, path in stored.items()}
    for name, draw in _drawable(files).items():
        if name not in content:
            content[name] = _png(draw())
    total = sum(len(data) for data in content.values())
    if total > MAX_PAGE_BYTES:
        raise UserError(
            f"the pictures in {str(files.run.plots)!r} have {total} bytes, at most {MAX_PAGE_BYTES} fit: remove some."
        )
    ordered = sorted(content, key=lambda name: (name not in CAPTIONS, name))
    captions = CAPTIONS | (CAPTIONS_OF_SEVERAL if isinstance(files.evaluation, MultiLabelReport) else {})
    return {name: Picture(name, captions.get(name, ""), _uri(content[name])) for name in ordered}


def _drawable(files: RunFiles) -> Mapping[str, Callable[[], Figure]]:
    draw: dict[str, Callable[[], Figure]] = {}
    if drawn_columns(files.rows):
        best = kept_epoch(files) if files.summary.selected else None
        draw["curves"] = lambda: curves_figure(files.rows, best=best)
    report = files.evaluation
    if isinstance(report, MultiLabelReport):
        several = report
        draw["per_class"] = lambda: class_precision_figure(several)
    elif report is not None:
        draw["confusion"] = lambda: confusion_figure(report.confusion, report.classes)
        draw["per_class"] = lambda: per_class_figure(report)
    return draw


def _read(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_PICTURE_BYTES:
        raise UserError(f"{str(path)!r} has {size} bytes, expected at most {MAX_PICTURE_BYTES}: remove it.")
    data = path.read_bytes()
    if not data.startswith(PNG_SIGNATURE):
        raise UserError(f"{str(path)!r} is no PNG picture although its name says so: remove it.")
    return data


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def _uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")
