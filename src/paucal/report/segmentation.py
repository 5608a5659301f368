"""The report of a segmentation run: the IoU of each class, and the images with the lowest and highest IoU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paucal.evaluation.results import stored_groups
from paucal.report.explanations import cost_rows, model_rows, reliability_warnings
from paucal.report.inputs import MAX_CLASSES, MAX_NAME, RunFiles, read_run, read_stored, score_and_interval
from paucal.report.page import write_run_page
from paucal.wording import images_text

METRICS_FILE = "evaluation/test/segmentation.json"
CAPTIONS = {
    "worst_images": "The test images with the lowest IoU: image, labels, predictions, and mistakes (red).",
    "best_images": "The test images with the highest IoU.",
    "train_batch": "Crops as the network sees them in training, above their masks.",
}


@dataclass(frozen=True)
class SegmentationScores:
    """The scores of a segmentation model on its test images as text; the defaults mean that there was no evaluation."""

    images: int = 0
    mean_iou: tuple[str, str] = ("", "")  # mean IoU and its confidence interval
    accuracy: tuple[str, str] = ("", "")
    classes: Sequence[Mapping[str, str]] = ()  # rows of the table of classes, by heading; the lowest IoU comes first
    unseen: Sequence[str] = ()  # names of classes that do not occur in the test masks
    groups: int | None = None  # number of groups of similar images; None if images are not grouped


def write_segmentation_report(run: Path) -> Path:
    """Write `report.html` into the run folder of a segmentation model, and return the path of the page."""
    files = read_run(run)
    scores, summary = read_stored(files.run, METRICS_FILE, parse_scores, SegmentationScores()), files.summary
    return write_run_page(
        files,
        "segmentation.html",
        trained={
            "model": summary.model,
            "parameters": model_rows(summary)["parameters"],
            "head": summary.method,
            "epochs": None if summary.epochs is None else f"{summary.epochs:g}",
            "best epoch": None if summary.best_epoch is None or not summary.selected else f"{summary.best_epoch:g}",
            **cost_rows(files),
            "images": summary.images_text,
        },
        scores=scores,
        figures=[(scores.mean_iou[0], "mean IoU"), (scores.accuracy[0], "pixel accuracy")] if scores.images else [],
        headline=_headline_sentences(files, scores),
        warnings=reliability_warnings(scores.images, scores.unseen, "mask", "how well the model finds these areas"),
        captions=CAPTIONS,
    )


def parse_scores(content: Mapping[str, Any]) -> SegmentationScores:
    """Convert the stored scores to text."""
    rows = []
    for row in sorted(content["classes"][:MAX_CLASSES], key=lambda row: (row["value"] is None, row["value"] or 0.0)):
        iou, interval = score_and_interval(row)
        name, pixels = str(row["class"])[:MAX_NAME], f"{int(row['pixels']):,}"
        rows.append({"class": name, "IoU": iou, "between": interval, "labelled pixels": pixels})
    return SegmentationScores(
        images=int(content["images"]),
        groups=stored_groups(content),
        mean_iou=score_and_interval(content["mean_iou"]),
        accuracy=score_and_interval(content["pixel_accuracy"]),
        classes=rows,
        unseen=[str(name)[:MAX_NAME] for name in content["unseen"][:MAX_CLASSES]],
    )


def _headline_sentences(files: RunFiles, scores: SegmentationScores) -> list[str]:
    if not scores.images:
        return ["The model has not been evaluated on test images yet."]
    sentences = [
        f"On {images_text(scores.images, scores.groups, 'test image')} that were not used in training, the predicted "
        f"and the labelled areas overlap by {scores.mean_iou[0]} of their union (mean IoU over the classes), and "
        f"{scores.accuracy[0]} of the pixels have the right class."
    ]
    if scores.mean_iou[1]:
        sentences.append(
            f"With this many images, the mean IoU on further images of the same kind is most likely between "
            f"{scores.mean_iou[1]} % (95 % interval over images)."
        )
    if not files.summary.selected:
        sentences.append("No images were kept for validation, so the model of the last epoch was kept.")
    return sentences
