"""Open the images of `--unlabelled`, leave out copies, and list the used images in the run folder."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.checking.survey import image_digests
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.sources.joining import split_location
from paucal.data.sources.parquet import find_parquet
from paucal.data.sources.table_reading import TABLE_SUFFIXES
from paucal.data.sources.tables import hold_out_listed_images
from paucal.data.splits.groups import find_copies
from paucal.data.splits.split import Split, held_out_part
from paucal.data.splits.split_csv import read_rows, write_split
from paucal.evaluation.seen_images import UNLABELLED_IMAGES
from paucal.methods.training_settings import TrainSettings
from paucal.runner.console import Console
from paucal.runner.images import SplitImages, decode_images, open_undecoded
from paucal.runs import RunFolder
from paucal.settings.shared import DataSettings
from paucal.types import UserError
from paucal.wording import counted

MAX_IMAGES = 5000  # maximum number of unlabelled images; more images take longer, and showed no further gain


def open_unlabelled(settings: TrainSettings) -> ImageSet:
    """Open the images of `--unlabelled` except test images, without reading pixels."""
    images = open_undecoded(_data_settings(settings), labelled=False)
    if images.stream is not None:
        raise UserError(
            f"--unlabelled: {settings.unlabelled} contains shards, which can only be read in order: unpack the shards."
        )
    folder = Path(str(settings.unlabelled)).expanduser()
    if images.location == str(folder.resolve()) and folder.is_dir():
        images = hold_out_listed_images(images, folder)
    part = held_out_part(images.declared_splits)
    images = images.select(np.flatnonzero([not part or declared != part for declared in images.declared_splits]))
    if not len(images):
        raise UserError(f"--unlabelled: all images of {settings.unlabelled} are test images: give other images.")
    return images


def read_unlabelled(settings: TrainSettings, data: SplitImages, max_images: int, console: Console) -> ImageSet:
    """Decode at most `max_images` unlabelled images; leave out copies of each other and of the run's images."""
    images, max_images = open_unlabelled(settings), min(max_images, MAX_IMAGES)
    if len(images) > max_images:
        console.say(f"note: {max_images} of the {len(images)} images without labels are used")
        images = images.select(evenly_spaced(len(images), max_images))
    with console.progress("reading images without labels") as advance:
        images = decode_images(
            images, replace(_data_settings(settings), on_bad_image="skip"), data.images.decode_options, advance
        )
    run_rows = np.concatenate([data.split_indices(name) for name in ("train", "val", "test")])
    copies_of_run, copies_of_others = find_copies(images, data.images.select(run_rows))
    held_out = data.images.select(np.concatenate([data.split_indices("val"), data.split_indices("test")]))
    copies_of_held_out = np.zeros(len(images), dtype=bool)
    if copies_of_run.any() and len(held_out):
        indices = np.flatnonzero(copies_of_run)
        copies_of_held_out[indices] = find_copies(images.select(indices), held_out)[0]
    for is_copy, original in (
        (copies_of_held_out, "a validation or test image"),
        (copies_of_run & ~copies_of_held_out, "a training image"),
        (copies_of_others & ~copies_of_run, "another image without labels"),
    ):
        if is_copy.any():
            verb = "looks" if is_copy.sum() == 1 else "look"
            console.say(f"left out: {counted(int(is_copy.sum()), 'image')} without labels that {verb} like {original}")
    return images.select(np.flatnonzero(~copies_of_run & ~copies_of_others))


def store_unlabelled_list(run: RunFolder, images: ImageSet) -> None:
    """Store the list of unlabelled images that a run learned from, so that an evaluation can detect these images."""
    parts = np.full(len(images), "train", dtype="<U6")
    write_split(run.path / UNLABELLED_IMAGES, images, Split(parts, ""), image_digests(images))


def read_listed_images(
    run: RunFolder, settings: TrainSettings, data: SplitImages, max_images: int, console: Console
) -> ImageSet:
    """Decode at most `max_images` of the unlabelled images that are listed in the run folder."""
    images, keys = open_unlabelled(settings), {row["key"] for row in read_rows(run.path / UNLABELLED_IMAGES)}
    indices = np.flatnonzero([key in keys for key in images.keys])
    images = images.select(indices[evenly_spaced(len(indices), max_images)])
    with console.progress("reading images without labels") as advance:
        return decode_images(
            images, replace(_data_settings(settings), on_bad_image="skip"), data.images.decode_options, advance
        )


def as_training_split(images: ImageSet) -> SplitImages:
    """Return images with a split in which all of them are training images."""
    return SplitImages(images, Split(np.full(len(images), "train", dtype="<U6"), ""))


def _data_settings(settings: TrainSettings) -> DataSettings:
    """Return the data settings of the unlabelled images, without `--image-column` if a folder has no table."""
    assert settings.unlabelled is not None
    folders = [path for piece in split_location(settings.unlabelled) if (path := Path(piece).expanduser()).is_dir()]
    has_plain_folder = any(not _has_table(folder) for folder in folders)
    return DataSettings(
        data=settings.unlabelled,
        data_root=settings.data_root,
        download=settings.download,
        image_column=None if has_plain_folder else settings.image_column,
        channels=settings.channels,
    )


def _has_table(folder: Path) -> bool:
    return any(file.suffix.lower() in TABLE_SUFFIXES for file in folder.iterdir()) or bool(find_parquet(folder))
