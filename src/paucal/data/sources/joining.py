"""Joins the images of several folders, tables or archives into one set."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.shards.stream import concatenate_streams
from paucal.data.stores import JoinedStore
from paucal.types import UserError

SEPARATOR = os.pathsep  # ":", or ";" on Windows, as in the environment variable PATH


def split_location(location: str | Path) -> list[str]:
    """Split "photos:more.zip" into paths; keep the text whole if it is an existing path, or if none of its parts is."""
    text = str(location)
    if "://" in text:  # the ":" of a URL is not a separator
        return [text]
    pieces = text.split(SEPARATOR)
    if len(pieces) < 2 or _exists(text) or not any(_exists(piece) for piece in pieces):
        return [text]
    return pieces


def join_sets(sets: Sequence[ImageSet], location: str) -> ImageSet:
    """Join several sets into one. Classes of the same name become one class, and keys begin with the name of the set.

    If some sets define splits, the images of all others become training images. If some are multi-label, so is the
    result.
    """
    if any(image_set.multi_hot is not None for image_set in sets) and all(image_set.classes for image_set in sets):
        sets = [image_set.as_multi_hot() for image_set in sets]
    labelled = {bool(image_set.classes) for image_set in sets}
    if len(labelled) > 1:
        raise UserError(
            f"{location}: some of these sources have classes and others have no classes; give only sources with "
            "classes, or only sources without classes."
        )
    # Names do not depend on the folders of the sets, so that a copied set keeps its keys.
    set_names = [image_set.name for image_set in sets]
    numbered = [f"{name}-{number}" for number, name in enumerate(set_names, start=1)]
    names = [name if set_names.count(name) == 1 else new for name, new in zip(set_names, numbered, strict=True)]
    # Two sets "photos" and a set "photos-1" would otherwise give the name "photos-1" twice.
    names = names if len(set(names)) == len(names) else numbered
    classes = tuple(sorted({name for image_set in sets for name in image_set.classes}))
    renumbered = [image_set.with_classes(classes) if image_set.classes else image_set for image_set in sets]
    multi_hot = [image_set.multi_hot for image_set in renumbered if image_set.multi_hot is not None]
    has_parts = any(part for image_set in sets for part in image_set.declared_splits)
    column_names = dict.fromkeys(name for image_set in sets for name in image_set.columns)
    return ImageSet(
        name="+".join(names),
        location=location,
        classes=classes,
        keys=[f"{name}/{key}" for name, image_set in zip(names, sets, strict=True) for key in image_set.keys],
        labels=np.concatenate([image_set.labels for image_set in renumbered]),
        declared_splits=[
            part or ("train" if has_parts else "") for image_set in sets for part in image_set.declared_splits
        ],
        store=JoinedStore([image_set.store for image_set in sets]),
        stream=concatenate_streams([image_set.stream for image_set in sets], [len(image_set) for image_set in sets]),
        # The two removed hints apply only to the first set.
        hints=replace(sets[0].hints, train_per_class=None, official_split_advice=""),
        notes=tuple(f"{name}: {note}" for name, image_set in zip(names, sets, strict=True) for note in image_set.notes),
        columns={
            name: [cell for image_set in sets for cell in image_set.columns.get(name, [""] * len(image_set))]
            for name in column_names
        },
        column_problems={name: text for image_set in sets for name, text in image_set.column_problems.items()},
        multi_hot=None if not multi_hot else np.concatenate(multi_hot),
    )


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False
