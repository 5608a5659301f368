"""`paucal eval` for a run of `paucal segment`: evaluation on images with masks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paucal.data.label_kinds import report_other_label_kinds
from paucal.data.masks.coding import NamedClasses
from paucal.data.masks.masked_images import images_of_pairs, read_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.splits.split import Split
from paucal.metrics.intervals import Score
from paucal.runner.console import Console
from paucal.runner.images import decode_images
from paucal.runner.resuming import typed_settings
from paucal.runs import open_model_folder
from paucal.tasks.segmentation.images import SegmentationData, open_segmentation_data
from paucal.tasks.segmentation.job import check_factors
from paucal.tasks.segmentation.model import SegmentationModel, load_segmenter
from paucal.tasks.segmentation.scores import (
    SegmentationReport,
    count_and_write_masks,
    format_score,
    report_table,
    segmentation_report,
    write_scores,
)
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.types import UserError
from paucal.verbs.eval.images import MASKS, choose_images, print_notes, report_folder
from paucal.verbs.eval.settings import EvalSettings
from paucal.wording import images_text
from paucal.writing import replace_folder


@dataclass(frozen=True)
class SegmentedSet:
    """The scores of a segmentation model on one set of images."""

    data: str  # name of the set
    report: SegmentationReport  # scores with intervals, scores by class, and the confusion matrix
    folder: Path  # folder of the tables and the predicted masks

    @property
    def scores(self) -> dict[str, Score]:
        """The mean IoU and the pixel accuracy with their intervals, by name."""
        return {"mean_iou": self.report.mean_iou, "pixel_accuracy": self.report.accuracy}

    @property
    def metrics(self) -> dict[str, float]:
        """The scores without intervals, by name."""
        return self.report.values


def evaluate_segmenter(model: str, data: Sequence[str], settings: EvalSettings, console: Console) -> list[SegmentedSet]:
    """Evaluate the segmentation model of a run on each set of images with masks, by default on the run's own images.

    Sliding windows and image scales are those of the run's own evaluation, unless `settings` sets scales or mirroring.
    """
    check_factors("scales", settings.scales)
    run = open_model_folder(model)
    network = load_segmenter(run, settings.device)
    run_settings = SegmentSettings(overlap=network.card.overlap)
    if run.config.exists():
        try:
            run_settings = typed_settings(run.settings, SegmentSettings)
        except TypeError as problem:
            text = f"the settings of {str(run.path)!r} are invalid for a run of paucal segment ({problem})"
            raise UserError(f"{text}: check the path.") from problem
    given = {name: value for name in ("scales", "mirror") if (value := getattr(settings, name))}
    run_settings = replace(run_settings, **given)
    results = []
    for target in data or [None]:
        if target is None and not run.config.exists():
            raise UserError(f"{str(run.path)!r} does not name its training images: give DATA.")
        if target is None:
            masked_set = open_segmentation_data(run_settings, console.progress, run)
        else:
            masked_set = _open_masked(target, network, settings, run_settings.ignore, console)
        selection = choose_images(run, masked_set.images, settings.part, target)
        print_notes(console, masked_set.images, network.decode_options, selection)
        folder, name = report_folder(run, target, data, settings), masked_set.images.name
        options = network.window_options(run_settings.test_scales, run_settings.mirror)
        options, indices = replace(options, overlap=run_settings.overlap), selection.positions.tolist()
        with replace_folder(folder / MASKS) as masks, console.progress("evaluating") as advance:
            tallies = count_and_write_masks(network, masked_set, indices, options, masks, advance)
        report = segmentation_report(tallies, network.classes, run_settings.seed, selection.groups)
        write_scores(folder, report, tallies, masked_set.images.keys)
        del tallies  # a confusion matrix for each image, which is not needed while the next set is evaluated
        console.show(report_table(report))
        console.say(
            f"{name}: mean IoU {format_score(report.mean_iou)}, pixel accuracy {format_score(report.accuracy)} "
            f"(95 % intervals over {images_text(report.images, report.groups)}); tables and masks are in {folder}"
        )
        results.append(SegmentedSet(name, report, folder))
    return results


def _open_masked(
    target: str, model: SegmentationModel, settings: EvalSettings, ignore: list[int] | None, console: Console
) -> SegmentationData:
    """Open images with masks from outside the run; mask values must have the same meaning as in training."""
    with report_other_label_kinds(Path(target), "segment"):
        pairs = find_pairs(Path(target))
    with console.progress("reading images") as advance:
        images = decode_images(images_of_pairs(pairs, target), settings, model.decode_options, advance)
    with console.progress("reading masks") as advance:
        meaning = {"ignore": ignore, "named_classes": NamedClasses(model.card.classes), "coding": model.card.coding}
        masked = read_masks(images, pairs, report_progress=advance, **meaning)
    for note in (*masked.images.notes, *masked.describe_findings()):
        console.say(f"note: {note}")
    split = Split(np.full(len(masked.images), "test", dtype="<U6"), "all images are test images")
    return SegmentationData(masked.images, split, masked=masked)
