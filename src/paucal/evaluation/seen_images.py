"""The images that a run, or an earlier run whose weights it used, was trained on.

Callers decide how to react. Test images seen without labels (in pre-training) are common practice and only reported; if
their labels were seen too, a score on them is too optimistic.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paucal.data.checking.survey import digest_or_none
from paucal.data.images import ImageSet
from paucal.data.shards.folders import is_remote
from paucal.data.sources.parquet import PARQUET_SUFFIXES
from paucal.data.splits.split import PARTS, Split
from paucal.data.splits.split_csv import read_rows
from paucal.runs import RunFolder
from paucal.runs.folder import run_behind, with_ancestors
from paucal.types import UserError

UNLABELLED_IMAGES = "unlabelled.csv"  # additional images without labels that a run learned from
LEARNED = ("train", "val")  # splits that a model was trained on or selected by


class Row(NamedTuple):
    """One image in the split of a run."""

    part: str
    digest: str


class Identities:
    """Digests and paths by which the images of a set are recognised.

    Args:
        images: Set of N images, opened from any folder, list or file.
        streamed: Whether images in shards are read for their digests too, which takes as long as reading all shards.
    """

    def __init__(self, images: ImageSet, streamed: bool = False) -> None:
        self.images, self._read = images, streamed or images.stream is None

    @cached_property
    def digests(self) -> list[str]:
        """The N digests in hexadecimal digits; "" for an image that is not read or cannot be read."""
        store = self.images.store
        return [(digest_or_none(store, index) if self._read else None) or "" for index in range(len(self.images))]

    @cached_property
    def paths(self) -> list[list[str]]:
        """The full names of each image, one for each place where the set may lie."""
        locations = _key_folders(self.images.location, self.images.name)
        return [[f"{place}/{key}" for place in locations] for key in self.images.keys]


@dataclass(frozen=True)
class LearnedImages:
    """Images that a run was trained on.

    Attributes:
        run: Run folder.
        labelled: Whether the run saw their labels.
        places: Folders that the keys may be relative to, and the name of a published set.
        rows: Split and digest of each image by its key; None if they are unknown.
        step: Description of their use.
    """

    run: RunFolder
    labelled: bool
    places: tuple[str, ...] = ()
    rows: Mapping[str, Row] | None = field(default=None, repr=False)
    step: str = "the pre-training"

    @cached_property
    def by_digest(self) -> dict[str, str]:
        """Split by stored digest. If equal images are in several splits, it is the one that was trained on."""
        ranked = sorted((self.rows or {}).values(), key=lambda row: -PARTS.index(row.part))
        return {row.digest: row.part for row in ranked if row.digest}

    @cached_property
    def by_path(self) -> dict[str, Row]:
        """Row of each image by its full names."""
        return {f"{place}/{key}": row for place in self.places for key, row in (self.rows or {}).items()}

    def parts_of(self, identities: Identities) -> NDArray[np.str_]:
        """Return the split of each image of a set in the run, (N,); "" for images that are not in the run.

        An image belongs to the run if its content is the same, whatever its name and folder. If no digest was stored or
        the image has none, the same name at the same place is enough.
        """
        rows, parts = self.rows or {}, np.full(len(identities.images), "", dtype="<U6")
        for index, key in enumerate(identities.images.keys):
            digest, own_row = identities.digests[index] if self.by_digest else "", rows.get(key)
            if digest and own_row is not None and own_row.digest == digest:
                parts[index] = own_row.part
            elif digest in self.by_digest:
                parts[index] = self.by_digest[digest]
            elif not digest or len(self.by_digest) < len(rows):
                row_of_path = next((row for path in identities.paths[index] if (row := self.by_path.get(path))), None)
                if row_of_path is not None and not (digest and row_of_path.digest):
                    parts[index] = row_of_path.part
        return parts

    def contains(
        self, images: ImageSet | Identities, selected: bool = False, by_key: bool = False
    ) -> NDArray[np.bool_]:
        """Return which images of a set the run was trained on, (N,).

        Args:
            images: Image set, opened from any folder, list or file.
            selected: Whether images that the model was selected by count too.
            by_key: Whether the same key is enough, for example after the folder was copied or moved.
        """
        identities = images if isinstance(images, Identities) else Identities(images)
        parts = LEARNED if selected else LEARNED[:1]
        is_seen = np.isin(self.parts_of(identities), parts)
        return is_seen | self.same_keys(identities, parts) if by_key else is_seen

    def same_keys(self, identities: Identities, parts: tuple[str, ...] = LEARNED) -> NDArray[np.bool_]:
        """Return which images have the same key as an image of the given splits, (N,), whatever they show."""
        rows = self.rows or {}
        return np.asarray([key in rows and rows[key].part in parts for key in identities.images.keys], dtype=bool)


def training_history(run: RunFolder | None) -> Iterator[LearnedImages]:
    """Yield the training images of a run, its additional images without labels, then those of its start, and so on."""
    with suppress(UserError):  # of a damaged run, which was already yielded, with unknown images
        for ancestor in with_ancestors(run):
            yield _read_learned(ancestor)
            if (unlabelled_images := _read_unlabelled(ancestor)) is not None:
                yield unlabelled_images


def readable_history(run: RunFolder) -> list[LearnedImages]:
    """Return the training images of a run and of the earlier runs whose weights it used."""
    history = list(training_history(run))
    for learned in history:
        _require_readable(learned)
    return history


def keys_with_seen_labels(run: RunFolder, images: ImageSet) -> frozenset[str]:
    """Return the keys of the images whose labels were used to train a run or an earlier run whose weights it used.

    The run's own images are recognised by their keys, wherever the folder is now; the images of earlier runs, which may
    come from other sets, by content or place.
    """
    is_seen, identities = np.zeros(len(images), dtype=bool), Identities(images)
    for position, learned in enumerate(training_history(run)):
        if position == 0:
            _require_readable(learned)
        if learned.labelled:
            is_seen |= learned.contains(identities, by_key=position == 0)
    return frozenset(images.keys[int(index)] for index in np.flatnonzero(is_seen))


def require_unseen(name: str, run: RunFolder | None, images: ImageSet, test: NDArray[np.int64]) -> None:
    """Refuse test images whose labels were used to train or select a model or an earlier run it started from."""
    identities = Identities(images)
    for index, learned in enumerate(training_history(run)):
        if not learned.labelled:
            continue
        _require_readable(learned)
        if n_seen := int(learned.contains(identities, selected=True)[test].sum()):
            start_text = "" if index == 0 else f"began with {learned.run.path}, which "
            raise UserError(
                f"{name} {start_text}was trained on, or chosen by, {n_seen} of the {len(test)} test images of "
                f"{images.name}: evaluate it on images that it has not seen, or leave DATA out to use its own "
                "test images."
            )


def seen_by_start(init: str | None, images: ImageSet, split: Split) -> list[str]:
    """Return remarks if the runs that this run starts from were trained on its test images."""
    test, history = split.indices("test"), list(training_history(run_behind(init)))
    remarks, identities = [], Identities(images)
    for labelled, label_text in (
        (False, "without labels"),
        (True, "with their labels: the test score will be too optimistic"),
    ):
        masks = [learned.contains(identities)[test] for learned in history if learned.labelled == labelled]
        if masks and (count := int(np.any(masks, axis=0).sum())):
            remarks.append(f"the start has learned from {count} of the {len(test)} test images, {label_text}")
    return remarks


def seen_unlabelled(run: RunFolder | None, images: ImageSet, test: NDArray[np.int64]) -> list[str]:
    """Return remarks on test images used to pre-train a run or an earlier run it started from; often empty."""
    remarks, identities = [], Identities(images)
    for index, learned in enumerate(training_history(run)):
        path = learned.run.path
        if learned.rows is None and not learned.labelled:
            if index:
                remarks.append(
                    f"whether {path}, which the model began with, had seen the {len(test)} test images is "
                    "unknown: it was removed, or has no list of its images"
                )
        elif not learned.labelled:
            count = int(learned.contains(identities)[test].sum())
            number_text = "none" if not count else f"{count}, without labels,"
            remarks.append(
                f"{learned.step} {path} has seen {number_text} of the {len(test)} test images of {images.name}"
            )
    return remarks


def _read_unlabelled(run: RunFolder) -> LearnedImages | None:
    """Return the images without labels that a run learned from beside its own; None for a run without them."""
    if not (run.path / UNLABELLED_IMAGES).is_file():
        return None
    try:
        rows, location = read_rows(run.path / UNLABELLED_IMAGES), run.settings.get("unlabelled")
    except UserError:
        rows, location = None, None
    table = None if rows is None else {row["key"]: Row(row["split"], row.get("digest") or "") for row in rows}
    locations = _key_folders(location) if isinstance(location, str) else ()
    return LearnedImages(run, False, locations, table, "the step on images without labels of")


def _read_learned(run: RunFolder) -> LearnedImages:
    """Return the known images that a run was trained on."""
    try:
        # The folder of a shared model may contain its split but no settings.
        config = run.read_yaml(run.config.name) if run.config.is_file() or not run.split.is_file() else {}
    except UserError:
        return LearnedImages(run, labelled=False)
    labelled, location = config.get("verb") != "pretrain", config.get("location")
    try:
        rows = read_rows(run.split)
    except UserError:
        return LearnedImages(run, labelled)
    settings: Any = config.get("settings")
    data = settings.get("data") if isinstance(settings, dict) else None
    locations = _key_folders(*(place for place in (location, data) if isinstance(place, str)))
    table = {row["key"]: Row(row["split"], row.get("digest") or "") for row in rows}
    return LearnedImages(run, labelled, locations, table)


def _require_readable(learned: LearnedImages) -> None:
    """Raise a UserError if the split of a run exists but cannot be read."""
    if learned.rows is None and learned.run.split.is_file():
        read_rows(learned.run.split)


def _key_folders(*places: str) -> tuple[str, ...]:
    """Return the folders that keys are relative to, in one spelling; for a Parquet file, the folder of the file."""
    folders = []
    for place in places:
        if place.lower().endswith(PARQUET_SUFFIXES):
            place = place.rpartition("/")[0] if is_remote(place) else str(Path(place).parent)
        folders.append(os.path.realpath(place) if os.path.exists(place) else place)
    return tuple(dict.fromkeys(folders))
