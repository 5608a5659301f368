"""Has this model seen this image? What a run has learned from, itself or through the runs it began with.

Whoever asks decides what follows. Images learned from without labels (pre-training) are common practice and worth a
remark; with their labels, a score on them means little or nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import ImageSet
from paucal.data.shards.place import is_remote
from paucal.data.sources.opening import PARQUET_SUFFIXES
from paucal.data.splits.file import read_rows
from paucal.data.splits.split import Split
from paucal.runs import RunFolder
from paucal.runs.ancestry import run_behind, with_ancestors
from paucal.types import UserError


@dataclass(frozen=True)
class Lesson:
    """What a run has learned from.

    Attributes:
        run: which.
        labelled: whether it was told their labels.
        places: what the keys may stand behind: the folder that holds the images, and the name of a published set.
        trained: keys of the images it was trained on; None where that cannot be told any more.
        selected: keys of those that its model was chosen by.
    """

    run: RunFolder
    labelled: bool
    places: tuple[str, ...] = ()
    trained: frozenset[str] | None = None
    selected: frozenset[str] = frozenset()

    def among(self, images: ImageSet, selected: bool = False, by_key: bool = False) -> NDArray[np.bool_]:
        """Return which images of a set are among them, (N,).

        Args:
            images: the set, opened from whichever folder, list or file.
            selected: whether those that the model was chosen by count too.
            by_key: whether the same key is enough, as where the folder was copied or moved since.
        """
        keys = (self.trained or frozenset()) | (self.selected if selected else frozenset())
        if by_key:
            return np.asarray([key in keys for key in images.keys], dtype=bool)
        known = {f"{place}/{key}" for place in self.places for key in keys}
        places = _places(images.location, images.name)
        return np.asarray([any(f"{place}/{key}" in known for place in places) for key in images.keys], dtype=bool)


def lessons(run: RunFolder | None) -> Iterator[Lesson]:
    """Yield what a run has learned from, then what the run it began with has, and so on."""
    line = with_ancestors(run)
    while True:
        try:
            one = next(line, None)
        except UserError:  # of a run that has been yielded, as one of which nothing can be told
            return
        if one is None:
            return
        yield _lesson(one)


def keys_told(run: RunFolder, images: ImageSet) -> frozenset[str]:
    """Return the keys of the images whose labels a run, or one it began with, was trained on.

    The run's own images are known by their keys, wherever the folder lies now; those of earlier runs, which may be of
    other sets, by their place too.

    Raises:
        UserError: the run's split is not as a run writes it.
    """
    known = np.zeros(len(images), dtype=bool)
    for place, one in enumerate(lessons(run)):
        if place == 0:
            _require_readable(one)
        if one.labelled:
            known |= one.among(images, by_key=place == 0)
    return frozenset(images.keys[int(index)] for index in np.flatnonzero(known))


def require_unseen(name: str, run: RunFolder | None, images: ImageSet, test: NDArray[np.int64]) -> None:
    """Refuse test images whose labels a model was trained on or chosen by, also through what it began with.

    Args:
        name: of the model.
        run: that made it; None for what is no run.
        images: the set.
        test: positions of its test images.

    Raises:
        UserError: there are such, or what the run was trained on cannot be read.
    """
    for place, one in enumerate(lessons(run)):
        if not one.labelled:
            continue
        _require_readable(one)
        if seen := int(one.among(images, selected=True)[test].sum()):
            began = "" if place == 0 else f"began with {one.run.path}, which "
            raise UserError(
                f"{name} {began}was trained on, or chosen by, {seen} of the {len(test)} test images of "
                f"{images.name}: judge it on images it has not seen, or on its own by leaving DATA out."
            )


def seen_by_start(init: str | None, images: ImageSet, split: Split) -> list[str]:
    """Return remarks if the runs that this one starts from have learned from images which this one tests with."""
    test, found = split.indices("test"), list(lessons(run_behind(init)))
    said = []
    for labelled, how in ((False, "without labels"), (True, "with their labels: the test score will mean little")):
        learned = [one.among(images)[test] for one in found if one.labelled == labelled]
        if learned and (count := int(np.any(learned, axis=0).sum())):
            said.append(f"the start has learned from {count} of the {len(test)} test images, {how}")
    return said


def seen_unlabelled(run: RunFolder | None, images: ImageSet, test: NDArray[np.int64]) -> list[str]:
    """Return what to say of test images that a run, or one it began with, was pre-trained on; often nothing.

    Args:
        run: that is judged; None for what is no run.
        images: the set.
        test: positions of its test images.
    """
    said = []
    for one in lessons(run):
        where = str(one.run.path)
        if one.trained is None and not one.labelled:
            said.append(
                f"whether {where}, which the model began with, had seen the {len(test)} test images cannot be told: "
                "it is gone, or does not say"
            )
        elif not one.labelled:
            count = int(one.among(images)[test].sum())
            shown = "none" if not count else f"{count}, without labels,"
            said.append(f"the pre-training {where} has seen {shown} of the {len(test)} test images of {images.name}")
    return said


def _lesson(run: RunFolder) -> Lesson:
    """Return what one run has learned from, as far as it can be told."""
    try:
        config = run.read_yaml(run.config.name)
    except UserError:
        return Lesson(run, labelled=False)
    labelled, location = config.get("verb") != "pretrain", config.get("location")
    try:
        rows = read_rows(run.split)
    except UserError:
        return Lesson(run, labelled)
    settings: Any = config.get("settings")
    data = settings.get("data") if isinstance(settings, dict) else None
    places = _places(*(place for place in (location, data) if isinstance(place, str)))
    trained, selected = ({row["key"] for row in rows if row["split"] == part} for part in ("train", "val"))
    return Lesson(run, labelled, places, frozenset(trained) if places else None, frozenset(selected))


def _require_readable(lesson: Lesson) -> None:
    """Raise a UserError if the split of a run is there and is none."""
    if lesson.trained is None and lesson.run.split.is_file():
        read_rows(lesson.run.split)


def _places(*places: str) -> tuple[str, ...]:
    """Return the folders that keys begin in; a set of one Parquet file is located at the file."""
    return tuple(_folder(one) if one.lower().endswith(PARQUET_SUFFIXES) else one for one in places)


def _folder(file: str) -> str:
    return file.rpartition("/")[0] if is_remote(file) else str(Path(file).parent)
