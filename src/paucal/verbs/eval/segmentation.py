"""The network of a run judged on images with masks: what `paucal eval` does with a run of `paucal segment`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from paucal.data.masks.masked_images import image_set, with_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.splits.split import Split
from paucal.runner.console import Console
from paucal.runner.images import decoded
from paucal.runner.run_folder import typed_settings
from paucal.runs import RunFolder, folder_in_place, open_model, write_text
from paucal.tasks.segmentation.conclusion import METRICS, write_mask
from paucal.tasks.segmentation.images import Segmented, open_segmented
from paucal.tasks.segmentation.job import check_factors
from paucal.tasks.segmentation.scores import SegmentationReport, segmentation_report
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.tasks.segmentation.tables import per_class_table, per_image_table, report_table, score_text
from paucal.tasks.segmentation.trained import SegmentationModel, load_segmenter
from paucal.tasks.segmentation.validation import count_pixels
from paucal.types import UserError
from paucal.verbs.eval.choosing import choose_judged, say_notes
from paucal.verbs.eval.places import MASKS, report_folder
from paucal.verbs.eval.settings import EvalSettings
from paucal.wording import counted


@dataclass(frozen=True)
class SegmentedSet:
    """How a network does on one set of images.

    Attributes:
        data: name of the set.
        report: scores with intervals, by class, and the confusion of classes.
        folder: where tables and the predicted masks lie.
    """

    data: str
    report: SegmentationReport
    folder: Path

    @property
    def metrics(self) -> dict[str, float]:
        """The scores as plain numbers."""
        return self.report.values


def judge_segmenter(model: str, data: Sequence[str], settings: EvalSettings, console: Console) -> list[SegmentedSet]:
    """Judge the network of a run on each set of images with masks, on its own where there is none.

    Images are looked at as the run looked at its test images, with the same scales, unless others are given.

    Raises:
        UserError: there is no such run, masks have values that it does not know, or there is nothing to judge.
    """
    check_factors("scales", settings.scales)
    run = open_model(model)
    network = load_segmenter(run, settings.device)
    stored = _stored(run) if run.config.exists() else SegmentSettings(overlap=network.card.overlap)
    stored = replace(stored, scales=settings.scales or stored.scales, mirror=settings.mirror or stored.mirror)
    found = []
    for target in data or [None]:
        if target is None and not run.config.exists():
            raise UserError(f"{str(run.path)!r} does not say on which images it was trained: give DATA.")
        if target is None:
            prepared = open_segmented(stored, console.progress, run)
        else:
            prepared = _opened(target, network, settings, stored.ignore, console)
        judged = choose_judged(run, prepared.images, settings.part, target)
        say_notes(console, prepared.images, network.reading, judged)
        places = judged.positions.tolist(), report_folder(run, target, data, settings)
        found.append(_judge(network, prepared, *places, stored, console))
    return found


def _stored(run: RunFolder) -> SegmentSettings:
    try:
        return typed_settings(run.settings, SegmentSettings)
    except TypeError as problem:
        raise UserError(f"the settings of {str(run.path)!r} are not those of a segmentation ({problem}).") from problem


def _opened(
    target: str, network: SegmentationModel, settings: EvalSettings, ignore: list[int] | None, console: Console
) -> Segmented:
    """Open other images with masks, whose values mean what they meant in the training."""
    pairs = find_pairs(Path(target))
    with console.progress("reading images") as advance:
        images = decoded(image_set(pairs, target), settings, network.reading, advance)
    with console.progress("reading masks") as advance:
        masked = with_masks(images, pairs, ignore=ignore, report=advance, coding=network.card.coding)
    for note in (*masked.images.notes, *masked.doubts()):
        console.say(f"note: {note}")
    every = Split(np.full(len(masked.images), "test", dtype="<U6"), "judged alone")
    return Segmented(masked.images, every, masked=masked)


def _judge(
    network: SegmentationModel,
    prepared: Segmented,
    indices: list[int],
    folder: Path,
    stored: SegmentSettings,
    console: Console,
) -> SegmentedSet:
    keys, classes = prepared.images.keys, network.classes

    def keep(index: int, shares: Tensor) -> None:
        write_mask(masks, keys[index], shares.argmax(0).cpu().numpy(), network.card.coding)

    look = network.look(tuple(stored.scales or (1.0,)), stored.mirror)
    with folder_in_place(folder / MASKS) as masks, console.progress("evaluating") as advance:
        tallies = count_pixels(
            *(network.network, prepared, indices, network.card.preprocessing),
            *(replace(look, overlap=stored.overlap), network.device),
            progress=lambda done: advance(done, len(indices)),
            see=keep,
        )
    report = segmentation_report(tallies, classes, stored.seed)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / METRICS, json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "per_class.csv", per_class_table(report))
    write_text(folder / "per_image.csv", per_image_table(tallies, keys))
    console.show(report_table(report))
    console.say(
        f"{prepared.images.name}: mean IoU {score_text(report.mean_iou)}, pixels right {score_text(report.accuracy)} "
        f"(95 % intervals over {counted(report.images, 'image')}); tables and masks lie in {folder}"
    )
    return SegmentedSet(prepared.images.name, report, folder)
