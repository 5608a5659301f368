"""Images and their target values, which are read from a column of a table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import ImageSet
from paucal.data.sources.labels import is_missing
from paucal.data.sources.table_columns import MAX_COLUMNS
from paucal.data.splits.split import Split, make_split
from paucal.data.splits.split_csv import read_split
from paucal.methods.training_settings import TrainSettings
from paucal.models.regression import MAX_GRADES, RegressionCard
from paucal.runner.images import SplitImages
from paucal.runner.job import RunSetup
from paucal.runner.resuming import stored_split
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.wording import counted, shorten, was_or_were

MIN_TARGETS = 10  # minimum number of images that have a target value


@dataclass(frozen=True, kw_only=True)
class ImagesWithTargets(SplitImages):
    """Images with their split and (N,) float64 targets."""

    targets: NDArray[np.float64]


def read_targets(images: ImageSet, column: str, min_targets: int = MIN_TARGETS) -> tuple[ImageSet, NDArray[np.float64]]:
    """Return the images that have a target value in a column of the table, and their (N,) target values."""
    if column not in images.columns:
        column_names = ", ".join(map(repr, images.columns)) or "no further columns"
        limit_note = f" (only {MAX_COLUMNS} columns are read)" if len(images.columns) >= MAX_COLUMNS else ""
        raise UserError(
            f"--target: {images.location} has no column {column!r}; the columns are {column_names}{limit_note}."
        )
    cells = images.column_values(column)
    indices = [index for index, cell in enumerate(cells) if not is_missing(cell)]
    targets = []
    for index in indices:
        try:
            target = float(cells[index])
        except ValueError:
            target = math.nan
        if not math.isfinite(target):
            raise UserError(
                f"--target: {column!r} is {shorten(cells[index], 40)!r} for {shorten(images.keys[index], 80)!r}, "
                "expected a number: correct the cell, or leave it empty."
            )
        targets.append(target)
    if len(indices) < min_targets:
        raise UserError(
            f"--target: {counted(len(indices), 'image')} with a number in {column!r}; expected at least {min_targets}."
        )
    n_without = len(cells) - len(indices)
    note = f"{counted(n_without, 'row')} without a number in {column!r} {was_or_were(n_without)} left out"
    selected = images.select(np.asarray(indices, dtype=np.int64), note if n_without else "")
    return selected, np.asarray(targets, dtype=np.float64)


def describe_targets(targets: NDArray[np.float64]) -> str:
    """Return the range, the mean and the standard deviation of targets as text."""
    return f"{targets.min():g} to {targets.max():g}, mean {targets.mean():.4g}, deviation {targets.std():.3g}"


def grades_note(targets: NDArray[np.float64], column: str) -> Sequence[str]:
    """Return a note, in a list, if the targets are a few consecutive whole numbers that could be grades or classes."""
    values = np.unique(targets)
    if not are_grades(targets) or np.ptp(values) != len(values) - 1:
        return []
    return [
        f"{column!r} has only the whole numbers {values[0]:g} to {values[-1]:g}, which are predicted as "
        f"continuous numbers; --ordinal predicts a grade, with a probability for each grade; --label-column {column} "
        "in place of --target learns the numbers as classes without an order"
    ]


def are_grades(targets: NDArray[np.float64]) -> bool:
    """Return whether targets are whole numbers that span two to `MAX_GRADES` grades."""
    return bool((targets == np.round(targets)).all() and 1 <= np.ptp(targets) < MAX_GRADES)


def require_grades(targets: NDArray[np.float64], column: str) -> None:
    """Raise a UserError for targets that are not grades; see `are_grades`."""
    if not are_grades(targets):
        raise UserError(
            f"--ordinal: {column!r} has {counted(len(np.unique(targets)), 'value')} from {targets.min():g} to "
            f"{targets.max():g}; expected two to {MAX_GRADES} consecutive whole numbers: remove --ordinal."
        )


def split_images_with_targets(settings: TrainSettings, images: ImageSet, run: RunFolder | None) -> Split:
    """Return the split stored in `run`, the split of `--split`, or else a new split without validation images."""
    if run is not None:
        return stored_split(run, images)
    if settings.split is not None:
        return read_split(Path(settings.split).expanduser(), images)
    fractions = {**settings.given_fractions, "val_fraction": 0.0}
    split = make_split(images, settings.seed, group_by=settings.group_by, fold=settings.fold, **fractions)
    parts = np.where(split.parts == "val", "train", split.parts)
    # Images with target values have no classes, so `make_split` has split at random.
    description = split.description.replace("cut per class", "cut at random").replace("cut by class", "cut at random")
    return Split(parts, description, split.groups)


@dataclass(frozen=True)
class RegressionSetup(RunSetup[TrainSettings]):
    """The checked inputs of a regression run, before any file is written."""

    data: ImagesWithTargets
    card: RegressionCard
