"""The images of a supervised run: their split, a quick check, and the images of `--unlabelled`.

The unlabelled images that a run learned from are listed in its folder.
"""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.checking.copies import exact_copy_findings
from paucal.data.checking.findings import CheckedSet, Finding, label_findings, sort_findings
from paucal.data.checking.related import group_by_digest
from paucal.data.checking.survey import digest_of
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.sources.joining import split_location
from paucal.data.sources.parquet import find_parquet
from paucal.data.sources.table_reading import TABLE_SUFFIXES
from paucal.data.sources.tables import hold_out_listed_images
from paucal.data.splits.groups import find_copies
from paucal.data.splits.split import (
    Split,
    held_out_part,
    keep_all_for_training,
    keep_train_fraction,
    keep_train_per_class,
    limit_val,
    make_split,
)
from paucal.data.splits.split_csv import read_rows, read_split
from paucal.evaluation.seen_images import UNLABELLED_IMAGES
from paucal.methods.training_settings import TrainSettings
from paucal.runner.console import Console
from paucal.runner.images import SplitImages, decode_images, open_undecoded
from paucal.runs import RunFolder
from paucal.settings.shared import DataSettings
from paucal.types import UserError
from paucal.wording import counted

MIN_PER_CLASS = 10  # with fewer images per class, a test split is too small for a useful score
MAX_READING_SECONDS = 5.0  # maximum time for reading files to find copies, so that the run starts soon
FINDINGS_FILE = "check.json"
MAX_UNLABELLED = 5000  # maximum number of unlabelled images; more images take longer, and showed no further gain


def too_few_for_test(settings: TrainSettings, images: ImageSet) -> bool:
    """Return whether there are so few images that all are used for training and the test score is cross-validated."""
    split_settings = (settings.split, settings.fold, settings.group_by, settings.val_fraction, settings.test_fraction)
    return (
        all(value is None for value in split_settings)
        and settings.epochs in (None, 0)  # only a probe is cross-validated, not a network trained for more epochs
        and images.stream is None
        and images.multi_hot is None
        and set(images.declared_splits) <= {"", "train"}
        and len(images) < MIN_PER_CLASS * len(images.classes)
    )


def split_images(settings: TrainSettings, images: ImageSet, keep_test: bool = False) -> SplitImages:
    """Split the images; with `keep_test`, make a test split even if `too_few_for_test` returns True."""
    fractions = settings.given_fractions
    if settings.split is not None:
        if settings.group_by is not None or settings.fold is not None or fractions:
            raise UserError(
                "--split defines all splits: remove --group-by, --fold, --val-fraction and --test-fraction."
            )
        split = read_split(Path(settings.split).expanduser(), images)
    elif not keep_test and too_few_for_test(settings, images):
        split = keep_all_for_training(images)
    else:
        split = make_split(images, seed=settings.seed, group_by=settings.group_by, fold=settings.fold, **fractions)
    if settings.fraction is not None and settings.few_labels is not None:
        raise UserError("--fraction and --few-labels both reduce the training images; give only one of the two.")
    if settings.fraction is not None:
        split = keep_train_fraction(split, images.targets, settings.fraction, settings.seed)
    elif settings.few_labels is not None:
        split = keep_train_per_class(split, images.targets, settings.few_labels, settings.seed)
    else:
        return SplitImages(images, split)
    return SplitImages(images, limit_val(split, images.targets, settings.seed))


def quick_check(data: SplitImages) -> list[Finding]:
    """Return problems of a run's images that can be found without decoding, most serious first."""
    images = data.images
    checked_set = CheckedSet(images, data.split.parts, len(set(images.declared_splits)) > 1)
    digests = None if images.stream is not None else _file_digests(images)
    # Leave out the notes of the image source, which the run prints itself.
    findings = [finding for finding in label_findings(checked_set) if finding.name != "source"]
    if digests is None:
        text = (
            f"{len(images)} images were not compared with each other, since that would have taken over "
            f"{MAX_READING_SECONDS:g} s"
        )
        advice = f"run 'paucal check {images.location}' to compare the images"
        return sort_findings([*findings, Finding("not-compared", "note", text, advice)])
    return sort_findings([*findings, *exact_copy_findings(checked_set, group_by_digest(digests))])


def _file_digests(images: ImageSet) -> list[bytes] | None:
    """Return a digest of each file, to find copies; None if reading the files takes too long."""
    deadline, digests = time.monotonic() + MAX_READING_SECONDS, []
    for position in range(len(images)):
        if position % 64 == 0 and time.monotonic() > deadline:
            return None
        try:
            digests.append(digest_of(images.store, position))
        except UserError:  # the file was removed after it was listed; the run reports this when it reads the image
            digests.append(b"")
    return digests


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
    images, max_images = open_unlabelled(settings), min(max_images, MAX_UNLABELLED)
    if len(images) > max_images:
        console.say(f"note: {max_images} of the {len(images)} images without labels are used")
        images = images.select(evenly_spaced(len(images), max_images))
    images = _decode_unlabelled(images, settings, data, console)
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


def read_listed_images(
    run: RunFolder, settings: TrainSettings, data: SplitImages, max_images: int, console: Console
) -> ImageSet:
    """Decode at most `max_images` of the unlabelled images that are listed in the run folder."""
    images, keys = open_unlabelled(settings), {row["key"] for row in read_rows(run.path / UNLABELLED_IMAGES)}
    indices = np.flatnonzero([key in keys for key in images.keys])
    return _decode_unlabelled(images.select(indices[evenly_spaced(len(indices), max_images)]), settings, data, console)


def _decode_unlabelled(images: ImageSet, settings: TrainSettings, data: SplitImages, console: Console) -> ImageSet:
    data_settings = replace(_data_settings(settings), on_bad_image="skip")
    with console.progress("reading images without labels") as advance:
        return decode_images(images, data_settings, data.images.decode_options, advance)


def as_training_split(images: ImageSet) -> SplitImages:
    """Return images with a split in which all of them are training images."""
    return SplitImages(images, Split(np.full(len(images), "train", dtype="<U6"), ""))


def _data_settings(settings: TrainSettings) -> DataSettings:
    """Return the data settings of the unlabelled images, without `--image-column` if a folder has no table."""
    assert settings.unlabelled is not None

    def has_table(folder: Path) -> bool:
        return any(file.suffix.lower() in TABLE_SUFFIXES for file in folder.iterdir()) or bool(find_parquet(folder))

    folders = [path for piece in split_location(settings.unlabelled) if (path := Path(piece).expanduser()).is_dir()]
    has_plain_folder = not all(map(has_table, folders))
    return DataSettings(
        data=settings.unlabelled,
        data_root=settings.data_root,
        download=settings.download,
        image_column=None if has_plain_folder else settings.image_column,
        channels=settings.channels,
    )
