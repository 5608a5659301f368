"""Has this model seen this image? What a run has learned from, itself or through the runs it began with.

Whoever asks decides what follows. Images learned from without labels (pre-training) are common practice and worth a
remark; with their labels, a score on them means little or nothing.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paucal.data.checking.survey import digest_or_none
from paucal.data.images import ImageSet
from paucal.data.shards.folders import is_remote
from paucal.data.sources.opening import PARQUET_SUFFIXES
from paucal.data.splits.split import PARTS, Split
from paucal.data.splits.split_csv import read_rows
from paucal.runs import RunFolder
from paucal.runs.folder import run_behind, with_ancestors
from paucal.types import UserError

LEARNED = ("train", "val")  # parts that a model was trained on or chosen by


class Row(NamedTuple):
    """One image in the split of a run.

    Attributes:
        part: Part of the image.
        digest: Digest of the image in hexadecimal digits; "" where the run has stored none.
    """

    part: str
    digest: str


class Identities:
    """What the images of a set are recognised by.

    Args:
        images: Set of N images, opened from whichever folder, list or file.
        streamed: Whether images in shards are read for their digests, too, which takes as long as reading all shards.
    """

    def __init__(self, images: ImageSet, streamed: bool = False) -> None:
        self.images, self._read = images, streamed or images.stream is None

    @cached_property
    def digests(self) -> list[str]:
        """N digests in hexadecimal digits; "" for an image that is not, or cannot be, read."""
        store = self.images.store
        return [(digest_or_none(store, index) if self._read else None) or "" for index in range(len(self.images))]

    @cached_property
    def paths(self) -> list[list[str]]:
        """The full names of each image: below each place where the set may lie."""
        places = _places(self.images.location, self.images.name)
        return [[f"{place}/{key}" for place in places] for key in self.images.keys]


@dataclass(frozen=True)
class Lesson:
    """What a run has learned from.

    Attributes:
        run: which.
        labelled: whether it was told their labels.
        places: what the keys may stand behind: the folder that holds the images, and the name of a published set.
        rows: Part and digest of each image by its key; None where they cannot be told any more.
    """

    run: RunFolder
    labelled: bool
    places: tuple[str, ...] = ()
    rows: Mapping[str, Row] | None = field(default=None, repr=False)

    @cached_property
    def by_digest(self) -> dict[str, str]:
        """The part of each stored digest; of equal images in several parts, the one that was learned from."""
        ranked = sorted((self.rows or {}).values(), key=lambda row: -PARTS.index(row.part))
        return {row.digest: row.part for row in ranked if row.digest}

    @cached_property
    def by_path(self) -> dict[str, Row]:
        """The row of each image by its full names."""
        return {f"{place}/{key}": row for place in self.places for key, row in (self.rows or {}).items()}

    def parts_of(self, known: Identities) -> NDArray[np.str_]:
        """Return the part that each image of a set had in the run, (N,); "" for images that the run did not have.

        An image is one of the run's where its content is the same, whatever it is called and wherever it lies. Where
        no digest was stored, or the image has none, the same name at the same place is enough.
        """
        rows, found = self.rows or {}, np.full(len(known.images), "", dtype="<U6")
        for index, key in enumerate(known.images.keys):
            digest, own = known.digests[index] if self.by_digest else "", rows.get(key)
            if digest and own is not None and own.digest == digest:
                found[index] = own.part
            elif digest in self.by_digest:
                found[index] = self.by_digest[digest]
            elif not digest or len(self.by_digest) < len(rows):
                there = next((row for path in known.paths[index] if (row := self.by_path.get(path))), None)
                found[index] = there.part if there is not None and not (digest and there.digest) else ""
        return found

    def among(self, images: ImageSet | Identities, selected: bool = False, by_key: bool = False) -> NDArray[np.bool_]:
        """Return which images of a set are among them, (N,).

        Args:
            images: the set, opened from whichever folder, list or file.
            selected: whether those that the model was chosen by count too.
            by_key: whether the same key is enough, as where the folder was copied or moved since.
        """
        known = images if isinstance(images, Identities) else Identities(images)
        parts = LEARNED if selected else LEARNED[:1]
        seen = np.isin(self.parts_of(known), parts)
        return seen | self.named_alike(known, parts) if by_key else seen

    def named_alike(self, known: Identities, parts: tuple[str, ...] = LEARNED) -> NDArray[np.bool_]:
        """Return which images have the key of an image of some parts, (N,), whatever they show."""
        rows = self.rows or {}
        return np.asarray([key in rows and rows[key].part in parts for key in known.images.keys], dtype=bool)


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


def readable_lessons(run: RunFolder) -> list[Lesson]:
    """Return what a run, and those it began with, have learned from.

    Raises:
        UserError: the split of one of them is there and cannot be read.
    """
    found = list(lessons(run))
    for lesson in found:
        _require_readable(lesson)
    return found


def keys_told(run: RunFolder, images: ImageSet) -> frozenset[str]:
    """Return the keys of the images whose labels a run, or one it began with, was trained on.

    The run's own images are known by their keys, wherever the folder lies now; those of earlier runs, which may be of
    other sets, by their place too.

    Raises:
        UserError: the run's split is not as a run writes it.
    """
    known, identities = np.zeros(len(images), dtype=bool), Identities(images)
    for place, one in enumerate(lessons(run)):
        if place == 0:
            _require_readable(one)
        if one.labelled:
            known |= one.among(identities, by_key=place == 0)
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
    known = Identities(images)
    for place, one in enumerate(lessons(run)):
        if not one.labelled:
            continue
        _require_readable(one)
        if seen := int(one.among(known, selected=True)[test].sum()):
            began = "" if place == 0 else f"began with {one.run.path}, which "
            raise UserError(
                f"{name} {began}was trained on, or chosen by, {seen} of the {len(test)} test images of "
                f"{images.name}: judge it on images it has not seen, or on its own by leaving DATA out."
            )


def seen_by_start(init: str | None, images: ImageSet, split: Split) -> list[str]:
    """Return remarks if the runs that this one starts from have learned from images which this one tests with."""
    test, found = split.indices("test"), list(lessons(run_behind(init)))
    said, known = [], Identities(images)
    for labelled, how in ((False, "without labels"), (True, "with their labels: the test score will mean little")):
        learned = [one.among(known)[test] for one in found if one.labelled == labelled]
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
    said, known = [], Identities(images)
    for place, one in enumerate(lessons(run)):
        where = str(one.run.path)
        if one.rows is None and not one.labelled:
            if place:
                said.append(
                    f"whether {where}, which the model began with, had seen the {len(test)} test images cannot be "
                    "told: it is gone, or does not say"
                )
        elif not one.labelled:
            count = int(one.among(known)[test].sum())
            shown = "none" if not count else f"{count}, without labels,"
            said.append(f"the pre-training {where} has seen {shown} of the {len(test)} test images of {images.name}")
    return said


def _lesson(run: RunFolder) -> Lesson:
    """Return what one run has learned from, as far as it can be told."""
    try:
        # A model that was given away may have its split beside it and no settings.
        config = run.read_yaml(run.config.name) if run.config.is_file() or not run.split.is_file() else {}
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
    table = {row["key"]: Row(row["split"], row.get("digest") or "") for row in rows}
    return Lesson(run, labelled, places, table)


def _require_readable(lesson: Lesson) -> None:
    """Raise a UserError if the split of a run is there and is none."""
    if lesson.rows is None and lesson.run.split.is_file():
        read_rows(lesson.run.split)


def _places(*places: str) -> tuple[str, ...]:
    """Return the folders that keys begin in, however they are spelled; one Parquet file lies in its folder."""
    folders = (_folder(one) if one.lower().endswith(PARQUET_SUFFIXES) else one for one in places)
    return tuple(dict.fromkeys(os.path.realpath(one) if os.path.exists(one) else one for one in folders))


def _folder(file: str) -> str:
    return file.rpartition("/")[0] if is_remote(file) else str(Path(file).parent)
