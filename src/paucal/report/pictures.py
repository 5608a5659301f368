"""The figures and images of a report, embedded in the page as data URIs."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure
from PIL import Image

from paucal.evaluation.curves import PANELS_PER_ROW, curves_figure, drawn_columns, with_speed
from paucal.evaluation.plots import class_precision_figure, confusion_figure, per_class_figure, render_png
from paucal.evaluation.protocols import table
from paucal.evaluation.results import MultiLabelReport
from paucal.report.explanations import count_training_images, find_kept_epoch
from paucal.report.inputs import RunFiles
from paucal.types import UserError

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_PICTURE_BYTES = 8 * 2**20  # size limit for one image file
MAX_PAGE_BYTES = 48 * 2**20  # size limit for all image files of a page

MAX_PNG_BYTES = 256 * 2**10  # larger PNGs probably show photographs, whose JPEG files are ten times smaller
MAX_PIXELS = 64_000_000  # largest number of pixels of a PNG that is converted to JPEG
JPEG_QUALITY = 85
# Names of image files that are sheets of many small images.
IMAGE_SHEETS = ("confusion", "mistakes", "mistakes_attribution", "train_batch", "eval_batch")

CAPTIONS = {
    "curves": "Losses and scores over the epochs.",
    "confusion": "Confusion matrix: each row is a true class, each column a prediction.",
    "per_class": "Recall of each class (fraction of its images that are classified correctly), the lowest first.",
    "reliability": (
        "Calibration. If the bars end at the dashed line, predictions with 80 % confidence are correct in 80 % of the "
        "cases. If the bars end below the line, the model is overconfident."
    ),
    "health": (
        "Signs of collapse. Entropies at the dotted line, a feature spread near 0 or an effective rank near 1 mean "
        "that the networks no longer distinguish images."
    ),
    "precision_recall": (
        "Precision (fraction of predictions that are correct) over recall (fraction of the class's images that are "
        "found) of each class. The dot marks the threshold, the dashed line is the chance level."
    ),
    "train_batch": "Images as the networks see them in training.",
    "mistakes_attribution": (
        "Attribution maps of the most confident mistakes: bright pixels support the predicted class in the first map, "
        "and the label in the second map."
    ),
    "eval_batch": "Images exactly as the finished model sees them.",
    "learning_curve": (
        "Accuracy of linear heads on the frozen network as a function of the number of images per class, with 95 % "
        "intervals. Tuning the whole network would give other accuracies."
    ),
    "frozen_features": "Scores of the frozen networks with their intervals.",
    "correspondence": (
        "Matched feature-map positions of two views of a test image: the ten most similar pairs that can be scored. "
        "The network received the second view with changed colours."
    ),
    "mistakes": "The most confident mistakes. Check their labels first.",
}
MULTI_LABEL_CAPTIONS = {
    "per_class": "Average precision of each class, the lowest first.",
    "mistakes": "The predictions that contradict labels most confidently; often a label is missing.",
}


@dataclass(frozen=True)
class Picture:
    """One figure or sheet of images on the page."""

    caption: str
    uri: str
    narrow: str | None  # data URI of a version for small screens; None if there is no such version
    sheet: bool  # whether this is a sheet of many small images, which must not be scaled down on a small screen


def embed_pictures(files: RunFiles) -> dict[str, Picture]:
    """Return a run's figures and image sheets by name.

    These are the files in `plots/`, the figures of frozen features, and further figures that are drawn from the run's
    metrics and scores.
    """
    frozen = files.run.evaluation(table.FOLDER)
    paths = [*sorted(files.run.plots.glob("*.png")), frozen / table.SCORES_PICTURE, frozen / table.MATCHES_PICTURE]
    content = {path.stem: _read_picture(path) for path in paths if path.is_file()}
    drawable = _drawable_figures(files)
    content |= {name: render_png(draw()) for name, draw in drawable.items() if name not in content}
    # Panels side by side would be too small to read on a small screen.
    narrow = {"curves": _data_uri(render_png(_draw_curves(files, columns=1)))} if "curves" in drawable else {}
    total = sum(len(data) for data in content.values())
    if total > MAX_PAGE_BYTES:
        raise UserError(
            f"the images in {str(files.run.plots)!r} take up {total} bytes, but a page can contain at most "
            f"{MAX_PAGE_BYTES}: remove some of the images."
        )
    captions = CAPTIONS | (MULTI_LABEL_CAPTIONS if isinstance(files.evaluation, MultiLabelReport) else {})
    return {
        name: Picture(captions.get(name, ""), _data_uri(content[name]), narrow.get(name), name in IMAGE_SHEETS)
        for name in sorted(content, key=lambda name: (name not in CAPTIONS, name))
    }


def _drawable_figures(files: RunFiles) -> dict[str, Callable[[], Figure]]:
    draw: dict[str, Callable[[], Figure]] = {}
    if drawn_columns(files.rows):
        draw["curves"] = partial(_draw_curves, files)
    report = files.evaluation
    if isinstance(report, MultiLabelReport):
        draw["per_class"] = partial(class_precision_figure, report)
    elif report is not None:
        draw["confusion"] = partial(confusion_figure, report.confusion, report.classes)
        draw["per_class"] = partial(per_class_figure, report)
    return draw


def _draw_curves(files: RunFiles, columns: int = PANELS_PER_ROW) -> Figure:
    images = count_training_images(files.summary)
    rows = files.rows if images is None else with_speed(files.rows, images)
    return curves_figure(rows, best=find_kept_epoch(files) if files.summary.selected else None, columns=columns)


def _read_picture(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_PICTURE_BYTES:
        raise UserError(f"{str(path)!r} is {size} bytes large, expected at most {MAX_PICTURE_BYTES}: remove the file.")
    data = path.read_bytes()
    if not data.startswith(PNG_SIGNATURE):
        raise UserError(f"{str(path)!r} is not a PNG image, in spite of its name: remove the file.")
    return data


def _data_uri(png: bytes) -> str:
    """Return a PNG as a data URI; a large PNG is converted to JPEG, unless it is damaged or the JPEG is not smaller."""
    if len(png) <= MAX_PNG_BYTES:
        return data_uri(png)
    buffer = io.BytesIO()
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                return data_uri(png)
            rgba = picture.convert("RGBA")
            on_white = Image.new("RGB", rgba.size, "white")
            on_white.paste(rgba, mask=rgba.getchannel("A"))
        on_white.save(buffer, "JPEG", quality=JPEG_QUALITY, optimize=True)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return data_uri(png)
    jpeg = buffer.getvalue()
    return data_uri(png) if len(jpeg) >= len(png) else data_uri(jpeg, "jpeg")


def data_uri(picture: bytes, kind: Literal["png", "jpeg"] = "png") -> str:
    """Return the bytes of an image file as a data URI in base64."""
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"
