"""The training, validation and test images of a supervised run, and a quick check of the images."""

import time
from pathlib import Path

from paucal.data.checking.findings import CheckedSet, Finding, label_findings, sort_findings
from paucal.data.checking.pictures import exact_copy_findings
from paucal.data.checking.related import group_by_digest
from paucal.data.checking.survey import digest_of
from paucal.data.images import ImageSet
from paucal.data.splits.split import (
    keep_all_for_training,
    keep_train_fraction,
    keep_train_per_class,
    limit_val,
    make_split,
)
from paucal.data.splits.split_csv import read_split
from paucal.methods.training_settings import TrainSettings
from paucal.runner.images import SplitImages
from paucal.runs import RunFolder
from paucal.types import UserError

MIN_PER_CLASS = 10  # with fewer images per class, a test split is too small for a useful score
MAX_READING_SECONDS = 5.0  # maximum time for reading files to find copies, so that the run starts soon
FINDINGS_FILE = "check.json"


def too_few_for_test(settings: TrainSettings, images: ImageSet) -> bool:
    """Return whether there are so few images that all are used for training and the test score is cross-validated.

    Always False if a setting defines or needs a test split, if validation or test images are declared, or if the images
    are streamed or may have several labels.
    """
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
    """Split the images into train, val and test; `--fraction` and `--few-labels` reduce the training images.

    With `keep_test`, a test split is made even if `too_few_for_test` is true of the images.
    """
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


def quick_check(data: SplitImages, seconds: float = MAX_READING_SECONDS) -> list[Finding]:
    """Return problems of a run's images that can be found without decoding, most serious first.

    Files are read for at most `seconds` to find copies.
    """
    images = data.images
    checked_set = CheckedSet(images, data.split.parts, len(set(images.declared_splits)) > 1)
    digests = None if images.stream is not None else _file_digests(images, seconds)
    # Leave out the notes of the image source, which the run prints itself.
    findings = [finding for finding in label_findings(checked_set) if finding.name != "source"]
    if digests is None:
        text = f"{len(images)} images were not compared with each other, since that would have taken over {seconds:g} s"
        advice = f"run 'paucal check {images.location}' to compare the images"
        return sort_findings([*findings, Finding("not-compared", "note", text, advice)])
    return sort_findings([*findings, *exact_copy_findings(checked_set, group_by_digest(digests))])


def write_findings(run: RunFolder, findings: list[Finding] | tuple[Finding, ...], images: ImageSet) -> None:
    """Store findings in a run folder, for the report page."""
    run.write_json(FINDINGS_FILE, {"findings": [finding.to_dict(images.keys) for finding in findings]})


def _file_digests(images: ImageSet, seconds: float) -> list[bytes] | None:
    deadline, digests = time.monotonic() + seconds, []
    for position in range(len(images)):
        if position % 64 == 0 and time.monotonic() > deadline:
            return None
        try:
            digests.append(digest_of(images.store, position))
        except UserError:  # the file was removed after it was listed; the run reports this when it reads the image
            digests.append(b"")
    return digests
