"""Which images a run has learned from, itself or through what it started from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paucal.data.images import ImageSet
from paucal.data.sources.opening import PARQUET_SUFFIXES
from paucal.data.splits.file import read_rows
from paucal.data.splits.split import Split
from paucal.runs import RunFolder
from paucal.types import UserError
from paucal.verbs.run.start_weights import TIMM, run_behind

LONGEST = 32  # runs that each started from the one before


@dataclass(frozen=True)
class Lesson:
    """What a run has learned from.

    Attributes:
        run: which.
        labelled: whether it was told their labels.
        images: their identities; None where that cannot be told any more.
    """

    run: RunFolder
    labelled: bool
    images: frozenset[str] | None

    def share(self, wanted: Sequence[str]) -> int:
        """Return how many of some images are among them."""
        return sum(one in self.images for one in wanted) if self.images else 0


def identities(images: ImageSet, indices: NDArray[np.int64]) -> list[str]:
    """Return a name for each image that is the same from whichever folder, list or file the set was opened."""
    return [f"{_base(images.location)}/{images.keys[index]}" for index in indices]


def lessons(run: RunFolder | None) -> Iterator[Lesson]:
    """Yield what a run has learned from, then what the run it started from has, and so on."""
    for _ in range(LONGEST):
        if run is None:
            return
        try:
            config = run.read_yaml(run.config.name)
        except UserError:
            yield Lesson(run, False, None)
            return
        yield Lesson(run, config.get("verb") != "pretrain", _learned(run, config))
        settings: Any = config.get("settings")
        init = settings.get("init") if isinstance(settings, dict) else None
        if isinstance(init, str) and init != TIMM and not Path(init).exists():
            yield Lesson(RunFolder(Path(init)), False, None)
            return
        run = run_behind(init) if isinstance(init, str) else None


def seen_by_start(init: str | None, images: ImageSet, split: Split) -> list[str]:
    """Return remarks if the runs that this one starts from have learned from images which this one tests with.

    Without labels (pre-training) that is common practice and worth knowing; with labels the test score means nothing.
    """
    test = identities(images, split.indices("test"))
    found = list(lessons(run_behind(init)))
    said = []
    for labelled, how in ((False, "without labels"), (True, "with their labels: the test score will mean little")):
        learned = frozenset[str]().union(*(one.images or () for one in found if one.labelled == labelled))
        if count := sum(one in learned for one in test):
            said.append(f"the start has learned from {count} of the {len(test)} test images, {how}")
    return said


def seen_unlabelled(run: RunFolder | None, images: ImageSet, test: NDArray[np.int64]) -> list[str]:
    """Return what to say of test images that a run, or one it started from, was pre-trained on; often nothing.

    Args:
        run: that is judged; None for what is no run.
        images: the set.
        test: positions of its test images.
    """
    wanted, said = identities(images, test), []
    for one in lessons(run):
        where = str(one.run.path)
        if one.images is None and not one.labelled:
            said.append(
                f"whether {where}, which the model began with, had seen the {len(test)} test images cannot be told: "
                "it is gone, or does not say"
            )
        elif not one.labelled:
            count = one.share(wanted)
            shown = "none" if not count else f"{count}, without labels,"
            said.append(f"the pre-training {where} has seen {shown} of the {len(test)} test images of {images.name}")
    return said


def _learned(run: RunFolder, config: dict[str, Any]) -> frozenset[str] | None:
    """Return the identities of a run's training images; None where they are not stored."""
    location = config.get("location")
    try:
        rows = read_rows(run.split)
    except UserError:
        return None
    if not isinstance(location, str):
        return None
    base = _base(location)
    return frozenset(f"{base}/{row['key']}" for row in rows if row["split"] == "train")


def _base(location: str) -> str:
    """Return the folder that keys begin in; a set of one Parquet file is located at the file."""
    return str(Path(location).parent) if location.lower().endswith(PARQUET_SUFFIXES) else location
