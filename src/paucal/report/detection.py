"""The report of a detector: its scores, the average precision of each class, and the images with the most mistakes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paucal.report.explanations import cost_rows, reliability_warnings
from paucal.report.inputs import MAX_CLASSES, MAX_NAME, read_run, read_stored, score_and_interval
from paucal.report.page import write_run_page
from paucal.wording import counted, percent

METRICS_FILE = "evaluation/detection/metrics.json"
CAPTIONS = {
    "worst_detections": "The test images with the most mistakes. Coloured boxes are detections with a score of at "
    "least 0.5, thin white boxes are labelled objects.",
    "detections": "Test images, evenly spaced in the test set.",
    "precision_recall": (
        "Precision (fraction of detections that are correct at an IoU of 0.5) over recall (fraction of objects that "
        "are found), for each class."
    ),
    "mask_precision_recall": "Precision over recall for masks instead of boxes, at a mask IoU of 0.5.",
    "train_batch": "Images and boxes as the network sees them in training.",
}


@dataclass(frozen=True)
class ReportedScores:
    """The scores of a detector on its test images as text; the defaults mean that the detector was not evaluated."""

    images: int = 0
    ap: tuple[str, str] = ("", "")  # mean AP at IoU thresholds from 0.5 to 0.95, and its confidence interval
    ap50: tuple[str, str] = ("", "")
    classes: Sequence[Mapping[str, str]] = ()  # rows of the table of classes, by heading; the lowest AP comes first
    unseen: Sequence[str] = ()  # names of classes without objects in the test images
    mask_ap: tuple[str, str] = ("", "")  # empty strings if the detector predicts no masks
    mask_ap50: tuple[str, str] = ("", "")


def write_detection_report(run: Path) -> Path:
    """Write `report.html` into the run folder of a detector, and return the path of the page."""
    files = read_run(run)
    scores = read_stored(files.run, METRICS_FILE, _parse_scores, ReportedScores())
    pairs = [(scores.ap, "AP"), (scores.ap50, "AP50"), (scores.mask_ap, "mask AP"), (scores.mask_ap50, "mask AP50")]
    consequence = "how well the detector finds these objects"
    return write_run_page(
        files,
        "detection.html",
        trained={"model": files.summary.model, **cost_rows(files), "images": files.summary.images_text},
        scores=scores,
        figures=[(score, name) for (score, _), name in pairs if score],
        headline=_headline_sentences(scores),
        warnings=reliability_warnings(scores.images, scores.unseen, "image", consequence),
        captions=CAPTIONS,
    )


def _parse_scores(content: Mapping[str, Any]) -> ReportedScores:
    values = {str(name): None if value is None else float(value) for name, value in content["per_class"].items()}
    weakest = sorted((value, name) for name, value in values.items() if value is not None)[:MAX_CLASSES]
    mask_values = content.get("mask_per_class", {})
    mask_aps = {str(name): "" if value is None else percent(float(value)) for name, value in mask_values.items()}
    rows = [{"class": name[:MAX_NAME], "AP": percent(value)} for value, name in weakest]
    if mask_aps:
        rows = [{**row, "mask AP": mask_aps.get(name, "")} for row, (_, name) in zip(rows, weakest, strict=True)]
    intervals = content["intervals"]
    return ReportedScores(
        images=int(content["images"]),
        ap=score_and_interval(intervals["ap"]),
        ap50=score_and_interval(intervals["ap50"]),
        classes=rows,
        unseen=[name[:MAX_NAME] for name, value in values.items() if value is None][:MAX_CLASSES],
        mask_ap=score_and_interval(intervals["mask_ap"]) if mask_aps else ("", ""),
        mask_ap50=score_and_interval(intervals["mask_ap50"]) if mask_aps else ("", ""),
    )


def _headline_sentences(scores: ReportedScores) -> list[str]:
    if not scores.images:
        return ["The detector has not been evaluated on test images yet."]
    sentences = [
        f"On {counted(scores.images, 'test image')} that were not used in training, the average precision is "
        f"{scores.ap50[0]} for boxes that overlap an object by half (AP50), and {scores.ap[0]} averaged over overlaps "
        "from 0.5 to 0.95 (AP)."
    ]
    if scores.ap[1]:
        sentences.append(
            "With this many images, the AP on further images of the same kind most likely lies between "
            f"{scores.ap[1]} % (95 % interval over images)."
        )
    if scores.mask_ap[0]:
        likely_range = f", most likely between {scores.mask_ap[1]} % on further images" if scores.mask_ap[1] else ""
        ap, ap50 = scores.mask_ap[0], scores.mask_ap50[0]
        sentences.append(f"For masks instead of boxes, AP50 is {ap50} and AP {ap}{likely_range}.")
    return sentences
