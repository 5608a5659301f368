"""Choose the images to evaluate a model on, excluding its training images, and the folders for the results."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.channels.pixel_format import bit_depth_notes
from paucal.data.decode import DEFAULT_DECODE_OPTIONS, DecodeOptions
from paucal.data.images import ImageSet
from paucal.data.splits.split import PARTS, Split, held_out_part
from paucal.data.splits.split_csv import read_split
from paucal.evaluation.protocols.data import (
    VOC_NAME,
    EvaluationData,
    evaluation_data,
    find_voc2007,
    is_voc2007,
    limit_split_sizes,
    open_voc2007,
    split_standalone_set,
)
from paucal.evaluation.protocols.table import FOLDER
from paucal.evaluation.seen_images import Identities, SeenImages, list_seen_images
from paucal.models.named import find_run
from paucal.models.tasks import SEGMENTATION, task_of
from paucal.reading import expand_user_path
from paucal.runner.console import Console
from paucal.runner.images import load_images, open_again, open_undecoded, with_absolute_data_paths
from paucal.runner.outputs import check_results
from paucal.runs import RunFolder, open_model_folder
from paucal.settings.shared import LabelledDataSettings
from paucal.types import UserError
from paucal.verbs.eval.settings import EvalSettings, OpeningSettings
from paucal.wording import counted

TEST = "test"
# Settings that determine how a run's data are opened, in addition to their location.
OPENING_SETTINGS = ("data_root", "label_column", "label_separator", "image_column", "channels", "classes")
MASKS = "masks"  # subfolder for predicted masks


@dataclass(frozen=True)
class ChosenImages:
    """Images that a model is evaluated on."""

    positions: NDArray[np.int64]  # positions of the images in the set, in ascending order
    notes: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None  # group number of each image of the set; None if images are independent


def print_notes(console: Console, images: ImageSet, decode_options: DecodeOptions, chosen: ChosenImages) -> None:
    """Print notes on the chosen images, in addition to the notes that were printed when the set was opened."""
    for note in (*bit_depth_notes(images, decode_options), *chosen.notes):
        console.say(f"note: {note}")


def choose_images(run: RunFolder, images: ImageSet, part: str | None, target: str | None) -> ChosenImages:
    """Choose the images of the split `part` to evaluate a run's model on; if `part` is None, the test images.

    If all images are images of the run, wherever they are stored, the splits of the run apply. Otherwise, an image is
    left out if its label was used to train or select the run, or an earlier run that gave the run's initial weights.
    `target` is the argument DATA of `paucal eval`; None for the images of the run.
    """
    run_part = part or TEST
    if target is None:
        split = read_split(run.split, images)
        advice = f"{run.path} has no {run_part} images: choose another --part, or give DATA."
        return _require_images(ChosenImages(split.indices(run_part), groups=split.groups), advice)
    identities, history = Identities(images, streamed=True), list_seen_images(run)
    if (parts := splits_in_run(history, identities)) is not None:
        chosen = ChosenImages(np.flatnonzero(parts == run_part))
        counts = ", ".join(f"{int((parts == name).sum())} {name}" for name in ("train", "val", TEST))
        text = f"{target} has only images of {run.path} ({counts})"
        chosen = _require_images(chosen, f"{text}: choose another split with --part, or give other images.")
        return replace(chosen, notes=(f"{text}: evaluated on the {run_part} images",))
    # Without --part, the images that DATA declares as held out are used, or else all images.
    declared, held_out = np.asarray(images.declared_splits, dtype="<U6"), held_out_part(images.declared_splits)
    declared_part = held_out if part in (None, TEST) else part
    if part is not None and not (declared == (declared_part or TEST)).any():
        existing = ", ".join(sorted(set(images.declared_splits) - {""})) or "no splits"
        raise UserError(f"--part {part}: {target} has {existing}: remove --part, or give an existing split.")
    candidates = np.flatnonzero(declared == declared_part) if declared_part else np.arange(len(images))
    is_seen = seen_with_labels(history, identities)
    notes = tuple(_seen_notes(run, history, identities, candidates, is_seen))
    return _require_images(
        ChosenImages(candidates[~is_seen[candidates]], notes),
        f"all {len(candidates)} images of {target} are training or validation images of {run.path}: give images that "
        "the run has not seen, or remove DATA to use the run's own test images.",
    )


def splits_in_run(history: Sequence[SeenImages], identities: Identities) -> NDArray[np.str_] | None:
    """Return the (N,) splits that a run assigns to the images; None unless all images belong to the run."""
    if not history or not history[0].labelled or not len(identities.images):
        return None
    parts = history[0].parts_of(identities)
    return parts if (parts != "").all() else None


def seen_with_labels(history: Sequence[SeenImages], identities: Identities) -> NDArray[np.bool_]:
    """Return an (N,) mask of the images whose labels were used to train or select any of the runs in `history`."""
    is_seen = np.zeros(len(identities.images), dtype=bool)
    for learned in history:
        if learned.labelled:
            is_seen |= learned.contains(identities, selected=True)
    return is_seen


def is_data_of_run(run: RunFolder, target: str, settings: LabelledDataSettings) -> bool:
    """Return whether DATA is the data that a run was trained on, opened with the same settings."""
    if not run.config.is_file():
        return False
    run_settings, pinned = run.settings, with_absolute_data_paths(replace(settings, data=target))
    has_same_opening = all(getattr(pinned, name) in (None, run_settings.get(name)) for name in OPENING_SETTINGS)
    return run_settings.get("data") == pinned.data and has_same_opening


def _seen_notes(
    run: RunFolder,
    history: Sequence[SeenImages],
    identities: Identities,
    candidates: NDArray[np.int64],
    is_seen: NDArray[np.bool_],
) -> list[str]:
    if not history or history[0].rows is None:
        return [f"whether the model was trained on these images is unknown: {run.path} has no split.csv"]
    notes, count, this_run = [], int(is_seen[candidates].sum()), history[0]
    if count:
        notes.append(
            f"left out {count} of the {len(candidates)} images, which {run.path}, or a run that it started from, used "
            f"for training or selection; {len(candidates) - count} remain"
        )
    has_same_key = this_run.same_keys(identities) & (this_run.parts_of(identities) == "") & ~is_seen
    if same_key := this_run.labelled * int(has_same_key[candidates].sum()):
        same_name = counted(same_key, "image has the name", "images have the names")
        explanation = (
            "and the run stored no digests to compare: if these are the same images, the score is too optimistic"
        )
        if this_run.by_digest:
            explanation = "but different content, so the run has not seen these images"
        notes.append(f"{same_name} of training or validation images of {run.path}, {explanation}")
    return notes


def _require_images(chosen: ChosenImages, advice: str) -> ChosenImages:
    if not len(chosen.positions):
        raise UserError(f"there are no images to evaluate: {advice}")
    return chosen


def open_data(
    target: str | None,
    run: RunFolder | None,
    settings: EvalSettings,
    console: Console,
    decode_options: DecodeOptions = DEFAULT_DECODE_OPTIONS,
) -> EvaluationData:
    """Open a data set for frozen features, with the splits of the run if all its images are images of the run.

    If `target` is None, the images of the run are opened. `run` is None for weights files and timm models.
    """
    with console.progress("reading images") as advance:
        if target is not None and (folder := _voc_folder(target, settings)) is not None:
            data = open_voc2007(folder)
        else:
            column = None if run is None else run.settings.get("target")  # None unless the run is a regression
            if run is not None and column is not None and target is None:
                raise UserError(
                    f"the images of {str(run.path)!r} have target values ({column!r}), but frozen features are "
                    "evaluated with classes: give DATA with classes."
                )
            if run is not None and column is None and (target is None or is_data_of_run(run, target, settings)):
                images = open_again(run, advance, settings.download, decode_options)
            else:
                images = load_images(replace(settings, data=str(target)), advance, decode_options=decode_options)
            split = _splits_of_run(run, images, target) if run is not None else None
            split = split or split_standalone_set(images, settings.seed, settings.val_fraction, settings.test_fraction)
            data = evaluation_data(images, split, settings.metric)
    if settings.max_images is not None:
        data = limit_split_sizes(data, settings.max_images, settings.seed)
    return data


def open_image_set(settings: OpeningSettings) -> ImageSet:
    """Open a data set without reading its pixels."""
    folder = _voc_folder(settings.data, settings)
    return open_undecoded(settings) if folder is None else open_voc2007(folder).images


def _voc_folder(target: str, settings: OpeningSettings) -> Path | None:
    """Return the folder of VOC2007 if `target` is its path or its name; None for any other set.

    Without --data-root, an existing path that is called like the set is not taken for its name.
    """
    path = Path(target)
    if target == VOC_NAME and (settings.data_root is not None or not path.exists()):
        return find_voc2007(settings.data_root, settings.download)
    return path if is_voc2007(path) else None


def _splits_of_run(run: RunFolder, images: ImageSet, target: str | None) -> Split | None:
    """Return the splits that a run assigns to the images; None if some images do not belong to the run.

    A pre-training run has no splits; since it saw no labels, no label of a test image can leak through new splits.
    """
    if run.config.is_file() and run.verb == "pretrain":
        return None
    if target is None:
        return read_split(run.split, images)
    parts = splits_in_run(list_seen_images(run), Identities(images, streamed=True))
    if parts is None or not {"train", "test"} <= set(parts.tolist()):
        return None
    return Split(parts, f"splits of {run.path}")


def check_result_folders(
    model: str, data: Sequence[str], settings: EvalSettings, extra_files: Sequence[str] = ()
) -> None:
    """Refuse folders to which results cannot be written; `extra_files` are those of `check_results`."""
    frozen = any(name != "classification" for name in settings.protocols)
    folders = [table_folder(model, settings)] if frozen else []
    images = {"DATA": None}
    if "classification" in settings.protocols:
        folder = open_model_folder(model)
        folders += [report_folder(folder, target, data, settings) for target in data or [None]]
        if not data and (run_settings := folder.settings):
            images = {"DATA": run_settings.get("data")}
    for target in data or [None]:
        for path in folders:
            check_results(path, images if target is None else {"DATA": target}, settings.data_root, extra_files)


def table_folder(model: str, settings: EvalSettings) -> Path:
    """Return the folder for the table of frozen features."""
    if settings.output is not None:
        return expand_user_path(settings.output)
    run = find_run(model)
    return run.evaluation(FOLDER) if run else Path("evaluation") / Path(model).stem


def report_folder(run: RunFolder, target: str | None, data: Sequence[str], settings: EvalSettings) -> Path:
    """Return the folder for the report on `target`, one of the sets `data`, or on the run's images if it is None.

    The name of the folder differs from those of the splits and of the other sets.
    """
    name = TEST
    if target is not None:
        path = Path(os.path.realpath(target))
        other_paths = {Path(os.path.realpath(other)) for other in data} - {path}
        used_names = {*PARTS, *(name for other in other_paths for name in _possible_names(other))}
        names = _possible_names(path)
        name = next((name for name in names if name not in used_names), names[-1])
        name += f"-{settings.part}" if settings.part else ""
    elif settings.part:
        name = settings.part
    if settings.scales or settings.mirror:  # kept apart from the run's own results
        name = f"{name}-scales" if task_of(str(run.path)) == SEGMENTATION else f"{name}-mirror"
    if settings.output is None:
        return run.evaluation(name)
    output = expand_user_path(settings.output)
    return output / name if len(data) > 1 else output


def _possible_names(path: Path) -> list[str]:
    """Return possible folder names for a data set, from the stem of `path` to all parts of `path` joined by hyphens."""
    parts = ["", *path.parts[1:]]
    longer_names = ("-".join(parts[-depth:]) for depth in range(2, len(parts) + 1))
    return [path.stem, f"{path.parent.name}-{path.stem}", *longer_names]
