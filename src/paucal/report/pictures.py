"""The pictures of a report, embedded in the page as data URIs."""

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure
from PIL import Image

from paucal.evaluation.curves import PANELS_PER_ROW, curves_figure, drawn_columns, with_speed
from paucal.evaluation.plots import class_precision_figure, confusion_figure, per_class_figure, png_of
from paucal.evaluation.results import MultiLabelReport
from paucal.report.explanations import kept_epoch, training_images
from paucal.report.frozen import frozen_pictures
from paucal.report.inputs import RunFiles
from paucal.types import UserError

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PICTURE_BYTES = 8 * 2**20
MAX_PAGE_BYTES = 48 * 2**20

LARGE = 256 * 2**10  # bytes; larger PNGs probably show photographs, which take a tenth of the size as JPEG
MAX_PIXELS = 64_000_000
QUALITY = 85
SHEETS = ("confusion", "mistakes", "mistakes_attribution", "train_batch", "eval_batch")

CAPTIONS = {
    "curves": "Losses and scores over the epochs.",
    "confusion": "Confusion matrix: each row is a true class, each column a prediction.",
    "per_class": "Recall of each class (share of its images that were found), the lowest first.",
    "reliability": (
        "Calibration. Bars on the dashed line: predictions with 80 % confidence are correct in 80 % of the cases. "
        "Bars below it: the model is overconfident."
    ),
    "health": (
        "Signs of collapse: entropies at the dotted line, a spread near 0 or a rank near 1 mean that the "
        "networks no longer distinguish images."
    ),
    "precision_recall": (
        "Precision (share of predictions that are correct) over recall (share of images found) of each class. The "
        "dot marks the threshold, the dashed line is chance."
    ),
    "train_batch": "Images as the networks see them in training.",
    "mistakes_attribution": (
        "Attribution maps of the most confident mistakes: bright pixels support the predicted class, or in the "
        "second map the label."
    ),
    "eval_batch": "Images exactly as the finished model sees them.",
    "learning_curve": (
        "Accuracy of linear heads on the frozen network by the number of images per class, with its 95 % "
        "interval. Tuning is not included."
    ),
    "frozen_features": "Scores of the frozen networks with their intervals.",
    "correspondence": (
        "Matching cells of two views of a test image: the ten most confident pairs that can be scored. The "
        "network saw the second view in other colours."
    ),
    "mistakes": "The most confident mistakes. Check their labels first.",
}
CAPTIONS_OF_SEVERAL = {
    "per_class": "Average precision of each class, the lowest first.",
    "mistakes": "The most confident contradictions of labels: many are missing labels.",
}


@dataclass(frozen=True)
class Picture:
    """One picture of the page; `narrow` is a data URI of a version for small screens, if there is one.

    A sheet consists of many small pictures, which must not be shrunk on a small screen.
    """

    name: str
    caption: str
    uri: str
    narrow: str | None = None
    sheet: bool = False


def pictures(files: RunFiles) -> dict[str, Picture]:
    """Return a run's pictures by name: the files in `plots/`, and pictures that can be drawn from its tables."""
    plots = [path for path in sorted(files.run.plots.glob("*.png")) if path.is_file()]
    plot_files = {path.stem: path for path in plots} | frozen_pictures(files.run)
    content = {name: _read_picture(path) for name, path in plot_files.items()}
    drawable = _drawable_figures(files)
    content |= {name: png_of(draw()) for name, draw in drawable.items() if name not in content}
    narrow_versions = {"curves": _data_uri(png_of(_draw_curves(files, columns=1)))} if "curves" in drawable else {}
    total = sum(len(data) for data in content.values())
    if total > MAX_PAGE_BYTES:
        raise UserError(
            f"the pictures in {str(files.run.plots)!r} have {total} bytes, at most {MAX_PAGE_BYTES} fit: remove some."
        )
    ordered = sorted(content, key=lambda name: (name not in CAPTIONS, name))
    captions = CAPTIONS | (CAPTIONS_OF_SEVERAL if isinstance(files.evaluation, MultiLabelReport) else {})
    return {
        name: Picture(name, captions.get(name, ""), _data_uri(content[name]), narrow_versions.get(name), name in SHEETS)
        for name in ordered
    }


def _drawable_figures(files: RunFiles) -> Mapping[str, Callable[[], Figure]]:
    draw: dict[str, Callable[[], Figure]] = {}
    if drawn_columns(files.rows):
        draw["curves"] = lambda: _draw_curves(files)
    report = files.evaluation
    if isinstance(report, MultiLabelReport):
        multi_label = report
        draw["per_class"] = lambda: class_precision_figure(multi_label)
    elif report is not None:
        draw["confusion"] = lambda: confusion_figure(report.confusion, report.classes)
        draw["per_class"] = lambda: per_class_figure(report)
    return draw


def _draw_curves(files: RunFiles, columns: int = PANELS_PER_ROW) -> Figure:
    images = training_images(files.summary)
    rows = files.rows if images is None else with_speed(files.rows, images)
    return curves_figure(rows, best=kept_epoch(files) if files.summary.selected else None, columns=columns)


def _read_picture(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_PICTURE_BYTES:
        raise UserError(f"{str(path)!r} has {size} bytes, expected at most {MAX_PICTURE_BYTES}: remove it.")
    data = path.read_bytes()
    if not data.startswith(PNG_SIGNATURE):
        raise UserError(f"{str(path)!r} is named as a PNG but is not one: remove it.")
    return data


def _data_uri(png: bytes) -> str:
    """Return a PNG as a data URI, converted to JPEG if that is smaller."""
    jpeg = _as_jpeg(png) if len(png) > LARGE else None
    return data_uri(png) if jpeg is None or len(jpeg) >= len(png) else data_uri(jpeg, "jpeg")


def data_uri(picture: bytes, kind: Literal["png", "jpeg"] = "png") -> str:
    """Return a picture as a data URI, which contains the whole picture and can be written into a page."""
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"


def _as_jpeg(data: bytes) -> bytes | None:
    """Return a PNG as JPEG; None if it is damaged or has more than `MAX_PIXELS` pixels."""
    buffer = io.BytesIO()
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                return None
            rgba = picture.convert("RGBA")
            page = Image.new("RGB", rgba.size, "white")
            page.paste(rgba, mask=rgba.getchannel("A"))
        page.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return buffer.getvalue()
