"""The report of a detector: the precision of each class, and the images where it goes wrong."""

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

METRICS = "evaluation/detection/metrics.json"
MOST_CLASSES, MOST_TEXT = 300, 300
FEW_IMAGES = 20
CAPTIONS = {
    "worst_detections": "The test images with the most mistakes: answers of a score from 0.5 on, objects as thin white "
    "boxes.",
    "detections": "Test images spread over the set.",
    "precision_recall": "How many answers are right (overlap 0.5) when so many objects of a class are found.",
    "mask_precision_recall": "The same where the masks have to overlap, pixel by pixel.",
    "train_batch": "Images and boxes as the network sees them in training.",
}


@dataclass(frozen=True)
class ClassRow:
    """The average precision of one class, of its boxes and of its masks, as text."""

    name: str
    ap: str
    mask_ap: str = ""


@dataclass(frozen=True)
class Found:
    """What a detector has reached on its test images; everything may be missing.

    Attributes:
        images: their number.
        ap: average precision over ten overlaps, with its interval, as text.
        ap50: the same at an overlap of 0.5.
        classes: the weakest first.
        unseen: classes that no test image shows.
        mask_ap: as `ap`, where overlaps are those of masks; empty where the detector answers none.
        mask_ap50: the same at an overlap of 0.5.
    """

    images: int = 0
    ap: tuple[str, str] = ("", "")
    ap50: tuple[str, str] = ("", "")
    classes: Sequence[ClassRow] = ()
    unseen: Sequence[str] = ()
    mask_ap: tuple[str, str] = ("", "")
    mask_ap50: tuple[str, str] = ("", "")


def write_detection_report(run: Path) -> Path:
    """Write `report.html` into the folder of a run of `paucal detect` from what lies there, and return its path.

    Raises:
        UserError: the folder does not exist, or one of its files is too large or damaged.
    """
    files = read_run(run)
    found = read_found(files)
    page = template("detection.html").render(
        title=files.summary.title or f"Run {run.resolve().name}",
        files=files,
        summary=files.summary,
        found=found,
        headline=headline(found),
        warnings=warnings(found),
        table=table(files),
        captions=CAPTIONS,
        again=again(files),
        pictures=pictures(files),
        shell_run=shlex.quote(str(run)),
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
        values = {str(name): None if value is None else float(value) for name, value in content["per_class"].items()}
        known = sorted((value, name) for name, value in values.items() if value is not None)
        masks = {str(name): _average(value) for name, value in content.get("mask_per_class", {}).items()}
        intervals = content["intervals"]
        return Found(
            images=int(content["images"]),
            ap=_score(intervals["ap"]),
            ap50=_score(intervals["ap50"]),
            classes=[
                ClassRow(name[:MOST_TEXT], percent(value), masks.get(name, "")) for value, name in known[:MOST_CLASSES]
            ],
            unseen=[name[:MOST_TEXT] for name, value in values.items() if value is None][:MOST_CLASSES],
            mask_ap=_score(intervals["mask_ap"]) if masks else ("", ""),
            mask_ap50=_score(intervals["mask_ap50"]) if masks else ("", ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise UserError(f"{str(path)!r} is damaged ({problem!r}): restore it or train again.") from problem


def headline(found: Found) -> list[str]:
    """Return the result in a few sentences."""
    if not found.images:
        return ["The detector has not been judged on test images yet."]
    words = [
        f"On {counted(found.images, 'test image')} that were kept away from its training, the average precision is "
        f"{found.ap50[0]} where a box counts that overlaps an object by half (AP50), and {found.ap[0]} averaged over "
        "overlaps from 0.5 to 0.95 (AP)."
    ]
    if found.ap[1]:
        words.append(
            "With this many images, the AP on further images of the same kind most likely lies between "
            f"{found.ap[1]} % (95 % interval over images)."
        )
    if found.mask_ap[0]:
        likely = f", most likely between {found.mask_ap[1]} % on further images" if found.mask_ap[1] else ""
        words.append(
            f"Where the masks have to overlap, pixel by pixel, AP50 is {found.mask_ap50[0]} and AP {found.mask_ap[0]}"
            f"{likely}."
        )
    return words


def warnings(found: Found) -> list[str]:
    """Return what a careful reader should know before trusting the result; often empty."""
    words = []
    if 0 < found.images < FEW_IMAGES:
        words.append(f"{counted(found.images, 'test image')} are few: the interval is as rough as the score.")
    if found.unseen:
        names = ", ".join(found.unseen[:8]) + (", ..." if len(found.unseen) > 8 else "")
        words.append(f"No test image shows {names}: nothing is known of how well the detector finds it.")
    return words


def table(files: RunFiles) -> Mapping[str, str]:
    """Return what was trained as names and texts, without what is unknown."""
    summary = files.summary
    rows = {
        "model": summary.model,
        **cost(files),
        "images": ", ".join(f"{part.images} {part.name}" for part in summary.parts) or None,
    }
    return {name: value for name, value in rows.items() if value is not None}


def _average(value: Any) -> str:
    return "" if value is None else percent(float(value))


def _score(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return a score and its interval as text."""
    middle, low, high = (None if value[name] is None else float(value[name]) for name in ("value", "low", "high"))
    if middle is None:
        return "none", ""
    return percent(middle), "" if low is None or high is None else f"{100 * low:.1f} and {100 * high:.1f}"
