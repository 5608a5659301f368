"""Several places as one set: images that were collected in several folders, tables or archives."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.shards.stream import concatenate_streams
from paucal.data.stores import JoinedStore
from paucal.types import UserError

SEPARATOR = os.pathsep  # ":", and ";" on Windows, as in lists of paths everywhere


def roots_of(location: str | Path) -> list[str]:
    """Return the places that a location names: several where they are joined by ":" (";" on Windows), else itself.

    A file or folder of that very name wins, and so does a name that is no list of things that exist.

    Example:
        >>> roots_of("digits")
        ['digits']
    """
    text = str(location)
    if "://" in text:  # a URL; several of them are not told apart from one
        return [text]
    pieces = text.split(SEPARATOR)
    if len(pieces) < 2 or _exists(text) or not any(_exists(piece) for piece in pieces):
        return [text]
    return pieces


def join_sets(sets: Sequence[ImageSet], location: str) -> ImageSet:
    """Return one set of several: classes are joined by their names, and keys begin with the name of their place.

    Where some places have parts of their own and others have none, the images of the others are training images; where
    the images of some may have several labels, those of all may.

    Args:
        sets: Sets opened with the same options.
        location: Location of the joined set.

    Raises:
        UserError: One of them has classes and another has none.
    """
    if any(one.multi_hot is not None for one in sets) and all(one.classes for one in sets):
        sets = [one.as_multi_hot() for one in sets]
    labelled = {bool(one.classes) for one in sets}
    if len(labelled) > 1:
        raise UserError(f"{location}: some of these places have classes and others have none; give alike ones")
    names = _names(sets)
    classes = tuple(sorted({name for one in sets for name in one.classes}))
    known = [replace(one, classes=()) if not one.classes else one.with_classes(classes) for one in sets]
    rows = [one.multi_hot for one in known if one.multi_hot is not None]
    parts = any(part for one in sets for part in one.declared)
    return ImageSet(
        name="+".join(names),
        location=location,
        classes=classes,
        keys=[f"{name}/{key}" for name, one in zip(names, sets, strict=True) for key in one.keys],
        labels=np.concatenate([one.labels for one in known]),
        declared=[part or ("train" if parts else "") for one in sets for part in one.declared],
        store=JoinedStore([one.store for one in sets]),
        stream=concatenate_streams([one.stream for one in sets], [len(one) for one in sets]),
        hints=replace(sets[0].hints, train_per_class=None, official_parts=""),  # of that set alone
        notes=tuple(f"{name}: {note}" for name, one in zip(names, sets, strict=True) for note in one.notes),
        multi_hot=None if not rows else np.concatenate(rows),
    )


def _names(sets: Sequence[ImageSet]) -> list[str]:
    """Return a different name for every set, the same wherever they are copied to together."""
    names = [one.name for one in sets]
    return [name if names.count(name) == 1 else f"{name}-{place + 1}" for place, name in enumerate(names)]


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False
