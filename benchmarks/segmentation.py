"""The score of a threshold on grey levels, on the same split as a run of `paucal segment` with two classes.

    python benchmarks/segmentation.py RUN --result benchmarks/results/segmentation_membrane.json

The level, and the side of it that is the second class, are those with the highest mean IoU on the training images;
they are evaluated once on the test images of the run. With `--blur` the image is blurred first; the training images
choose among a few radii.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import ImageFilter

from paucal.data.masks.coding import IGNORED
from paucal.metrics.measures import PixelScores, value_of
from paucal.runner.console import SilentConsole
from paucal.runner.resuming import stored_settings
from paucal.runs import open_run
from paucal.settings.options import setting_fields
from paucal.tasks.segmentation.images import SegmentationData, open_segmentation_data
from paucal.tasks.segmentation.scores import PixelCounts, SegmentationReport, segmentation_report
from paucal.tasks.segmentation.settings import SegmentSettings

PLACES = ("data", "images", "masks", "output", "split", "classes")  # settings
RADII = (0.0, 1.0, 2.0, 3.0, 4.0)  # pixels


def main() -> None:
    """Read the arguments, evaluate the thresholds, and print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--result", type=Path, help="JSON file to write")
    chosen = parser.parse_args()
    run = open_run(chosen.run)
    settings, _ = stored_settings(run, SegmentSettings, "segment")
    prepared = open_segmentation_data(settings, SilentConsole().progress, run)
    found = {"plain": threshold(prepared, (0.0,)), "blurred": threshold(prepared, RADII)}
    judged = run.read_json("evaluation/test/segmentation.json")
    result = {
        "settings": {name: _without_place(name, getattr(settings, name)) for name in setting_fields(settings)},
        "seconds": run.read_json("summary.json")["seconds"],
        "network": {name: judged[name] for name in ("mean_iou", "pixel_accuracy", "images")},
        "per_class": {row["class"]: row["value"] for row in judged["classes"]},
        "thresholds": {name: {**how, **scores(report)} for name, (how, report) in found.items()},
    }
    print(json.dumps({name: result[name] for name in ("network", "per_class", "thresholds")}, indent=1))
    if chosen.result is not None:
        chosen.result.write_text(json.dumps(result, indent=1) + "\n")


def _without_place(name: str, value: object) -> object:
    """Return a setting as others may read it: where the images lay on this machine tells them nothing."""
    return Path(value).name if name in PLACES and isinstance(value, str) else value


def threshold(prepared: SegmentationData, radii: tuple[float, ...]) -> tuple[dict[str, object], SegmentationReport]:
    """Return the threshold that is best on the training images, and what it reaches on the test images."""
    best: tuple[float, float, int, bool] = (-1.0, 0.0, 0, True)
    for radius in radii:
        counts = np.sum(
            [histogram(prepared, index, radius) for index in prepared.split_indices("train").tolist()], axis=0
        )
        for level in range(1, 256):
            for above in (True, False):
                score = value_of(PixelScores([at_level(counts, level, above)]).mean_iou, 1)
                best = max(best, (score, radius, level, above))
    score, radius, level, above = best
    tallies = [
        PixelCounts(index, at_level(histogram(prepared, index, radius), level, above))
        for index in prepared.split_indices("test").tolist()
    ]
    how = {"radius": radius, "level": level, "second_class_is_above": above, "train_mean_iou": score}
    return how, segmentation_report(tallies, prepared.images.classes)


def histogram(prepared: SegmentationData, index: int, radius: float) -> np.ndarray:
    """Return the (2, 256) labelled pixels of an image by class and grey level."""
    image = prepared.images.store.read(index).convert("L")
    if radius:
        image = image.filter(ImageFilter.GaussianBlur(radius))
    grey, mask = np.asarray(image), prepared.masks.read(index)
    known = mask != IGNORED
    codes = mask[known].astype(np.int64) * 256 + grey[known]
    return np.bincount(codes, minlength=512).reshape(2, 256)


def at_level(counts: np.ndarray, level: int, above: bool) -> np.ndarray:
    """Return the (2, 2) confusion of answering the second class from a level on, or below it."""
    high, low = counts[:, level:].sum(1), counts[:, :level].sum(1)
    return np.stack([low, high] if above else [high, low], axis=1)


def scores(report: SegmentationReport) -> dict[str, object]:
    """Return the scores as plain values."""
    content = report.to_dict()
    return {
        **{name: content[name] for name in ("mean_iou", "pixel_accuracy")},
        "per_class": {row["class"]: row["value"] for row in content["classes"]},
    }


if __name__ == "__main__":
    main()
