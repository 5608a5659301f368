"""The images on which a run was trained, and the images on which the runs that provided its weights were trained.

Callers decide how to react. Pre-training on test images without their labels is common practice and is only reported.
If a model was trained with the labels of test images, the model's score on these images is too optimistic.
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
from paucal.runs.folder import find_run_of_init, iterate_ancestry
from paucal.types import UserError

UNLABELLED_IMAGES = "unlabelled.csv"  # file of a run that lists its additional images without labels
LEARNED_SPLITS = ("train", "val")  # splits that a model was trained on or selected by


class Row(NamedTuple):
    """The split of an image in a run, and the digest of the image's content ("" if no digest was stored)."""

    part: str
    digest: str


class Identities:
    """Digests and paths by which the images of a set are recognised in other sets.

    If `streamed` is True, digests of images in shards are computed too, which takes as long as reading all shards.
    """

    def __init__(self, images: ImageSet, streamed: bool = False) -> None:
        self.images, self._can_read = images, streamed or images.stream is None

    @cached_property
    def digests(self) -> list[str]:
        """The N hexadecimal digests; "" for an image that is not read or cannot be read."""
        store = self.images.store
        return [(digest_or_none(store, index) if self._can_read else None) or "" for index in range(len(self.images))]

    @cached_property
    def paths(self) -> list[list[str]]:
        """The possible paths of each image, which begin with the location or the name of the image set."""
        folders = _key_folders(self.images.location, self.images.name)
        return [[f"{folder}/{key}" for folder in folders] for key in self.images.keys]


@dataclass(frozen=True)
class SeenImages:
    """Images that a run was trained on."""

    run: RunFolder
    labelled: bool  # whether the run used the labels of the images
    folders: tuple[str, ...] = ()  # folders, or the name of a published data set, to which the keys may be relative
    # Split and digest of each image, by the image's key; None if the images are unknown.
    rows: Mapping[str, Row] | None = field(default=None, repr=False)
    step: str = "the pre-training"  # start of a remark, such as "the pre-training runs/1 has seen ..."

    @cached_property
    def by_digest(self) -> dict[str, str]:
        """Split of each image by its stored digest; if several splits contain the image, the first of these splits."""
        ranked = sorted((self.rows or {}).values(), key=lambda row: -PARTS.index(row.part))
        return {row.digest: row.part for row in ranked if row.digest}

    @cached_property
    def by_path(self) -> dict[str, Row]:
        """Split and digest of each image, by the image's possible paths."""
        return {f"{folder}/{key}": row for folder in self.folders for key, row in (self.rows or {}).items()}

    def parts_of(self, identities: Identities) -> NDArray[np.str_]:
        """Return the split that each image of a set had in the run, (N,); "" for images that are not in the run.

        An image is in the run if an image of the run has the same content, regardless of name and folder. If no digest
        was stored or the image has no digest, an equal path is enough.
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
        """Return whether the run was trained on each image of a set, (N,).

        `selected` includes validation images, by which the model was selected. If `by_key` is True, an equal key is
        enough, for example because the folder was copied or moved.
        """
        identities = images if isinstance(images, Identities) else Identities(images)
        parts = LEARNED_SPLITS if selected else LEARNED_SPLITS[:1]
        is_seen = np.isin(self.parts_of(identities), parts)
        return is_seen | self.same_keys(identities, parts) if by_key else is_seen

    def same_keys(self, identities: Identities, parts: tuple[str, ...] = LEARNED_SPLITS) -> NDArray[np.bool_]:
        """Return whether each image has the key of an image in the splits `parts` of the run, (N,); ignore contents."""
        rows = self.rows or {}
        return np.asarray([key in rows and rows[key].part in parts for key in identities.images.keys], dtype=bool)


def iterate_seen_images(run: RunFolder | None) -> Iterator[SeenImages]:
    """Yield the training images and the additional unlabelled images of a run, then those of its ancestors.

    The first ancestor is the run that provided the initial weights of `run`, the second is the run that provided the
    initial weights of the first ancestor, and so on.
    """
    with suppress(UserError):  # the ancestors of a damaged run are unknown
        for ancestor in iterate_ancestry(run):
            yield _read_seen(ancestor)
            if (unlabelled_images := _read_unlabelled(ancestor)) is not None:
                yield unlabelled_images


def list_seen_images(run: RunFolder) -> list[SeenImages]:
    """Return the training images of a run and its ancestors; raise a UserError if a list of images is damaged."""
    history = list(iterate_seen_images(run))
    for seen in history:
        _require_readable(seen)
    return history


def keys_with_seen_labels(run: RunFolder, images: ImageSet) -> frozenset[str]:
    """Return the keys of the images whose labels were used to train a run or its ancestors.

    Images of the run itself are also recognised by their keys, since the folder may have been moved. Images of its
    ancestors may come from other sets, so they are recognised only by content or path.
    """
    is_seen, identities = np.zeros(len(images), dtype=bool), Identities(images)
    for position, seen in enumerate(iterate_seen_images(run)):
        if position == 0:
            _require_readable(seen)
        if seen.labelled:
            is_seen |= seen.contains(identities, by_key=position == 0)
    return frozenset(images.keys[int(index)] for index in np.flatnonzero(is_seen))


def require_unseen(name: str, run: RunFolder | None, images: ImageSet, test: NDArray[np.int64]) -> None:
    """Raise a UserError if labels of the test images were used to train or select a model or its ancestors."""
    identities = Identities(images)
    for index, seen in enumerate(iterate_seen_images(run)):
        if not seen.labelled:
            continue
        _require_readable(seen)
        if n_seen := int(seen.contains(identities, selected=True)[test].sum()):
            start_text = "" if index == 0 else f"started from {seen.run.path}, which "
            raise UserError(
                f"{name} {start_text}was trained on, or selected by, {n_seen} of the {len(test)} test images of "
                f"{images.name}: evaluate the model on images that it has not seen, or remove DATA to use the model's "
                "own test images."
            )


def initial_weights_overlap_remarks(init: str | None, images: ImageSet, split: Split) -> list[str]:
    """Return remarks if the run of the initial weights, or its ancestors, were trained on this run's test images."""
    test, history = split.indices("test"), list(iterate_seen_images(find_run_of_init(init)))
    remarks, identities = [], Identities(images)
    for labelled, label_text in (
        (False, "without labels"),
        (True, "with their labels: the test score will be too optimistic"),
    ):
        masks = [seen.contains(identities)[test] for seen in history if seen.labelled == labelled]
        if masks and (count := int(np.any(masks, axis=0).sum())):
            remarks.append(f"the initial weights were trained on {count} of the {len(test)} test images, {label_text}")
    return remarks


def seen_unlabelled(run: RunFolder | None, images: ImageSet, test: NDArray[np.int64]) -> list[str]:
    """Return remarks on test images that were used without labels to train a run or its ancestors; may be empty."""
    remarks, identities = [], Identities(images)
    for index, seen in enumerate(iterate_seen_images(run)):
        path = seen.run.path
        if seen.rows is None and not seen.labelled:
            if index:
                remarks.append(
                    f"whether {path}, whose weights the model started from, has seen the {len(test)} test images is "
                    "unknown: the run was removed, or has no list of its images"
                )
        elif not seen.labelled:
            count = int(seen.contains(identities)[test].sum())
            number_text = "none" if not count else f"{count}, without labels,"
            remarks.append(f"{seen.step} {path} has seen {number_text} of the {len(test)} test images of {images.name}")
    return remarks


def _read_unlabelled(run: RunFolder) -> SeenImages | None:
    """Return the additional unlabelled images that a run was trained on; None if the run used no such images."""
    if not (run.path / UNLABELLED_IMAGES).is_file():
        return None
    try:
        rows, location = read_rows(run.path / UNLABELLED_IMAGES), run.settings.get("unlabelled")
    except UserError:
        rows, location = None, None
    table = None if rows is None else {row["key"]: Row(row["split"], row.get("digest") or "") for row in rows}
    folders = _key_folders(location) if isinstance(location, str) else ()
    return SeenImages(run, False, folders, table, "the step on images without labels of")


def _read_seen(run: RunFolder) -> SeenImages:
    """Return the images of a run's split; `rows` is None if the split cannot be read."""
    try:
        # The folder of a shared model may contain the split without the settings.
        config = run.read_yaml(run.config.name) if run.config.is_file() or not run.split.is_file() else {}
    except UserError:
        return SeenImages(run, labelled=False)
    labelled, location = config.get("verb") != "pretrain", config.get("location")
    try:
        rows = read_rows(run.split)
    except UserError:
        return SeenImages(run, labelled)
    settings: Any = config.get("settings")
    data = settings.get("data") if isinstance(settings, dict) else None
    folders = _key_folders(*(path for path in (location, data) if isinstance(path, str)))
    table = {row["key"]: Row(row["split"], row.get("digest") or "") for row in rows}
    return SeenImages(run, labelled, folders, table)


def _require_readable(seen: SeenImages) -> None:
    """Raise a UserError if the split of a run exists but cannot be read."""
    if seen.rows is None and seen.run.split.is_file():
        read_rows(seen.run.split)


def _key_folders(*locations: str) -> tuple[str, ...]:
    """Return the folders that keys are relative to, with symbolic links resolved.

    The location of a Parquet file is replaced with the file's folder.
    """
    folders = []
    for location in locations:
        if location.lower().endswith(PARQUET_SUFFIXES):
            location = location.rpartition("/")[0] if is_remote(location) else str(Path(location).parent)
        folders.append(os.path.realpath(location) if os.path.exists(location) else location)
    return tuple(dict.fromkeys(folders))
