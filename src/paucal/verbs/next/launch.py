"""`paucal next`: choose the unlabelled images that are most worth labelling next."""

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paucal.data.images import ImageSet, without_decoded_copies
from paucal.data.label_kinds import LABEL_KINDS
from paucal.data.sources.opening import open_images
from paucal.data.splits.groups import find_copies
from paucal.evaluation.seen_images import Identities, iterate_seen_images
from paucal.models.tasks import TRAINING_COMMANDS, task_of
from paucal.reading import expand_user_path
from paucal.runner.console import Console, RecordingConsole
from paucal.runner.images import load_images
from paucal.runner.input_images import path_of_image
from paucal.runner.outputs import check_new_file, check_new_folder, refuse_inside_images
from paucal.runner.writable import resolve_table
from paucal.runs import RunFolder
from paucal.runs.folder import find_run_of_init
from paucal.settings.options import check_ranges
from paucal.settings.values import settings_from_keywords, with_settings_signature
from paucal.tasks.detection.pictures import make_contact_sheet
from paucal.types import UserError
from paucal.verbs.convert.launch import write_set
from paucal.verbs.convert.writing import LAYOUTS
from paucal.verbs.next.predictions import MODELS, Predictions
from paucal.verbs.next.selection import ChosenImage, choose_images
from paucal.verbs.next.settings import NextSettings
from paucal.verbs.predict.writing import SHEET_FORMATS, sheet_writer
from paucal.wording import counted
from paucal.writing import csv_text, write_atomically, write_text


@dataclass(frozen=True)
class ImageToLabel:
    """An image that is worth labelling.

    Attributes:
        path: Path of the image.
        label: Predicted label, to be corrected: the class of the image, several classes separated by ";", or for a
            segmentation model the largest classes with their percentage of the pixels.
        unsure: Uncertainty of the model about the image, from 0 to 1.
        by: How the image was chosen: "choice" (by uncertainty and similarity) or "random".
        reason: Text with the prediction for the image and the reason for choosing the image.
    """

    path: str
    label: str
    unsure: float
    by: str
    reason: str


@dataclass(frozen=True)
class NextImages:
    """Result of `paucal next`.

    Attributes:
        rows: Images to label, the most useful images first, randomly chosen images last.
        said: Lines that the command line prints.
    """

    rows: list[ImageToLabel]
    said: tuple[str, ...] = ()


@with_settings_signature(NextSettings)
def next_images(model: str | os.PathLike[str], data: str | os.PathLike[str], **settings: Any) -> NextImages:
    """Choose the unlabelled images that are most worth labelling next; the same as `paucal next`.

    Args:
        model: Run folder of `paucal train`, `paucal detect` or `paucal segment`, or another model that `paucal.load`
            can read.
        data: Unlabelled images, as in `paucal.pretrain`.
        **settings: Any field of `paucal.verbs.next.settings.NextSettings`.

    Returns:
        The chosen images, each with the reason for the choice.

    Raises:
        UserError: The model does not exist, no image is left to label, or a file cannot be written.
        TypeError: A setting does not exist.

    Example:
        >>> for row in paucal.next_images("runs/1", "unlabelled/", count=20).rows:  # doctest: +SKIP
        ...     print(row.path, row.reason)
    """
    console = RecordingConsole()
    typed_settings = settings_from_keywords(NextSettings, {**settings, "data": data}, "paucal.next_images", "next")
    result = choose_next(os.fspath(model), typed_settings, console)
    return replace(result, said=tuple(console.said))


def choose_next(source: str, settings: NextSettings, console: Console) -> NextImages:
    """Choose images, print a summary and write the requested files; see `next_images`."""
    check_ranges(settings)
    _check_outputs(settings)
    task = task_of(source)
    if task not in MODELS:
        raise UserError(
            f"{source} predicts target values, which paucal next does not support: give a classifier, a detector or a "
            "segmentation model."
        )
    if settings.to is not None and TRAINING_COMMANDS[task] not in LAYOUTS[settings.to].kinds:
        supported_kinds = " or ".join(kind.noun for kind in LABEL_KINDS if kind.verb in LAYOUTS[settings.to].kinds)
        raise UserError(
            f"--to {settings.to} stores {supported_kinds}, but {source} is a model for {task}: choose another --to."
        )
    model = MODELS[task](source, settings.device)
    with console.progress("reading images") as advance:
        images = load_images(settings, advance, labelled=False, decode_options=model.decode_options)
    if images.stream is not None:
        raise UserError(
            f"{settings.data} consists of shards, which can only be read in order: give folders, tables or Parquet."
        )
    images = _unlabelled_images(images, source, settings, console)
    predictions = model.predict(images, console)
    unsure, features, labelled = predictions.unsure, predictions.features, predictions.training_features
    choices = choose_images(unsure, features, labelled, settings.count, settings.random_share, settings.seed)
    indices = np.asarray([choice.index for choice in choices], dtype=np.int64)
    content = predictions.draft_labels(indices)
    if content.kind == "segment":
        labels = [predictions.descriptions[index] for index in indices]
    else:
        labels = [";".join(item.labels or [obj.name for obj in item.objects]) for item in content.items]
    rows = [
        ImageToLabel(
            path_of_image(images, images.keys[choice.index]),
            label,
            round(float(predictions.unsure[choice.index]), 4),
            "random" if choice.is_random else "choice",
            describe_choice(predictions, choice),
        )
        for choice, label in zip(choices, labels, strict=True)
    ]
    if settings.sheet is not None:
        path = expand_user_path(settings.sheet, "--sheet")
        captions = [f"{number}. {row.reason}" for number, row in enumerate(rows, 1)]
        pictures = [images.store.read(int(index)).convert("RGB") for index in indices]
        write_atomically(path, sheet_writer(make_contact_sheet(pictures, captions), path))
    if settings.to is not None and settings.folder is not None:
        content = replace(content, images=without_decoded_copies(content.images))
        write_set(content, LAYOUTS[settings.to], expand_user_path(settings.folder, "--folder"), console)
        for lost_kind, count in content.lost.items():
            if count:
                console.say(f"lost: {lost_kind}: {count}")
    if settings.output is not None:  # `paucal train` can read this table after its labels are corrected
        table = csv_text(("image_path", "label", "unsure", "chosen_by", "reason"), *map(astuple, rows))
        write_text(expand_user_path(settings.output), table)
    _print_summary(settings, rows, console)
    return NextImages(rows)


def _check_outputs(settings: NextSettings) -> None:
    inputs = {"DATA": settings.data}
    if settings.output is not None:
        path, table_format = resolve_table(settings.output)
        if table_format != "csv":
            raise UserError(f"--output: {settings.output!r} is not a CSV file: give a name that ends in .csv.")
        refuse_inside_images(path, inputs, settings.data_root)
    if settings.sheet is not None:
        if Path(settings.sheet).suffix.lower() not in SHEET_FORMATS:
            raise UserError(f"--sheet: {settings.sheet[:120]!r} must end in .png, .jpg or .jpeg: give another name.")
        check_new_file(settings.sheet, inputs, settings.data_root, "--sheet")
    if (settings.to is None) != (settings.folder is None):
        missing = "--to, the layout of the files" if settings.to is None else "--folder, a new folder for the images"
        raise UserError(f"--to and --folder must be given together: give {missing}.")
    if settings.folder is not None:
        check_new_folder(settings.folder, inputs, settings.data_root, "--folder")


def _unlabelled_images(images: ImageSet, source: str, settings: NextSettings, console: Console) -> ImageSet:
    """Return the images whose labels the run has not used, without copies of other images unless --copies is keep."""
    run = find_run_of_init(source)
    is_seen, identities = np.zeros(len(images), dtype=bool), Identities(images)
    for learned in iterate_seen_images(run):
        if learned.labelled:
            is_seen |= learned.parts_of(identities) != ""
    if is_seen.any():
        console.say(f"left out: {counted(int(is_seen.sum()), 'image')} whose labels the run has used")
        images = images.select(np.flatnonzero(~is_seen))
    if settings.copies == "leave-out" and len(images):
        copies_of_run, copies_of_others = find_copies(images, _images_of(run, images, console))
        only_others = copies_of_others & ~copies_of_run
        for is_copy, original in ((copies_of_run, "an image of the run"), (only_others, "another unlabelled image")):
            if is_copy.any():
                verb = "looks" if is_copy.sum() == 1 else "look"
                console.say(f"left out: {counted(int(is_copy.sum()), 'image')} that {verb} like {original}")
        images = images.select(np.flatnonzero(~copies_of_run & ~copies_of_others))
    if not len(images):
        # --copies keep has no effect on images whose labels the run has used.
        advice = "" if is_seen.all() else ", or --copies keep"
        raise UserError(
            f"there is nothing to label: all images of {settings.data} are labelled, or look like labelled images. "
            f"Give other images{advice}."
        )
    return images


def _images_of(run: RunFolder | None, unlabelled: ImageSet, console: Console) -> ImageSet | None:
    """Return the training images of a run; None if the images are unknown or cannot be opened."""
    data = None if run is None else run.settings.get("data")
    if run is None or data is None:
        return None
    try:
        images = open_images(str(data), labelled=False, root=run.settings.get("data_root"))
    except (UserError, OSError) as problem:
        console.say(f"note: copies of the run's images are not recognised: {problem}")
        return None
    return None if images.stream is not None else images


def describe_choice(predictions: Predictions, choice: ChosenImage) -> str:
    """Return a text with the prediction for a chosen image and the reason for choosing the image."""
    phrases = [predictions.descriptions[choice.index]]
    if choice.is_random:
        phrases.append("drawn at random")
    elif choice.n_represented > 1:
        phrases.append(f"represents {choice.n_represented} images")
    if predictions.is_unfamiliar is not None and bool(predictions.is_unfamiliar[choice.index]):
        phrases.append("not like the training images")
    return "; ".join(phrases)


def _print_summary(settings: NextSettings, rows: Sequence[ImageToLabel], console: Console) -> None:
    n_random = sum(row.by == "random" for row in rows)
    random_text = f", {n_random} of them at random" if n_random else ""
    console.say(
        f"{counted(len(rows), 'image')} to label next{random_text}; the labels are predictions: correct wrong labels"
    )
    if settings.folder is not None:
        console.say(f"images and predictions as {settings.to}: {settings.folder}")
    if settings.output is not None:
        console.say(f"list: {settings.output}")
    if settings.output is None and settings.folder is None:
        for row in rows:
            console.say(f"{row.path}: {row.reason}")
