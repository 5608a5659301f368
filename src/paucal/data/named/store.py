"""Data sets by name as image sets, and what to say where their files are missing or damaged."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.named.locations import data_root, home_of, how_to_get
from paucal.data.named.partitions import by_lists
from paucal.data.named.readers import Piece, fetch_portion, read_portion
from paucal.data.named.table import NAMED, NamedSet
from paucal.data.sources.several import JoinedStore
from paucal.types import UserError


def open_named(name: str, root: str | Path | None = None, download: bool = False, labelled: bool = True) -> ImageSet:
    """Open a data set by its name; its official parts are the declared ones.

    Flowers102's official validation images belong to train, as in the DrLoc paper (a validation part is cut from both
    by `make_split`); everywhere else an official validation part stays one.

    Args:
        name: a key of `NAMED`.
        root: folder of the files; None for `named.data_root`.
        download: whether torchvision may fetch what is missing, or unpack the official archives that lie there.
        labelled: False leaves the labels out.

    Raises:
        UserError: the files are not there, or damaged, or cannot be fetched; or labels are asked for and there are
            none; or a package is missing; or a list of an official partition is damaged.
    """
    entry, folder = NAMED[name], data_root(root)
    if labelled and not entry.labelled:
        raise UserError(
            f"the data set '{name}' has no classes here, so nothing can be trained or judged by them: "
            f"'paucal pretrain {name}' learns from its images alone; give another set."
        )
    _require(entry.package, entry)
    home = home_of(entry, folder)
    if home is None:
        if not (download and entry.fetchable):
            raise UserError(f"the data set '{name}' is not in {folder}: {how_to_get(name, folder)}.")
        _fetch(name, folder)
        home = folder
    try:
        pieces = [read_portion(name, home, portion, labelled) for portion in entry.portions]
        images = _join(name, home, pieces, labelled)
    except UserError:  # which says it better already
        raise
    except Exception as problem:  # the files come from outside, so reading them may raise nearly anything
        renewal = f"remove {' and '.join(entry.unpacked)} from {home}, then " if entry.unpacked else ""
        raise UserError(
            f"the data set '{name}' in {home if entry.one_of else home / entry.folder} is incomplete or damaged "
            f"({_reason(problem)}); {renewal}{how_to_get(name, folder)}."
        ) from problem
    return by_lists(entry, images, home)


def _require(package: str, entry: NamedSet) -> None:
    if package and importlib.util.find_spec(package) is None:
        raise UserError(
            f"{entry.title} needs the package {package}, which is not installed; run pip install 'paucal[datasets]'."
        )


def _fetch(name: str, root: Path) -> None:
    entry = NAMED[name]
    _require(entry.fetch_package, entry)
    try:
        for portion in entry.portions:
            fetch_portion(name, root, portion)
    except Exception as problem:  # network, disk, archive: torchvision passes on what the layers below raise
        raise UserError(
            f"the data set '{name}' could not be fetched ({_reason(problem)}); {how_to_get(name, root, asked=True)}."
        ) from problem


def _reason(problem: Exception) -> str:
    if isinstance(problem, RuntimeError) and "download=True" in str(problem):
        return "files are missing or differ from the official ones"
    return " ".join(str(problem).split()).rstrip(".") or type(problem).__name__


def _join(name: str, root: Path, pieces: Sequence[Piece], labelled: bool) -> ImageSet:
    entry, classes = NAMED[name], pieces[0].classes
    labels = np.concatenate([piece.labels for piece in pieces])
    keys = [key for piece in pieces for key in piece.keys]
    if not keys:
        raise ValueError("there are no images")
    if any(piece.classes != classes for piece in pieces) or len(set(classes)) < len(classes):
        raise ValueError("its parts name different classes, or one class twice")
    if len(set(keys)) < len(keys):
        raise ValueError("an image is listed twice")
    if labelled and (labels.min(initial=0) < 0 or labels.max(initial=0) >= len(classes)):
        raise ValueError(f"a label is not among its {len(classes)} classes")
    return ImageSet(
        name=name,
        location=str(root),
        classes=classes if labelled else (),
        keys=keys,
        labels=labels if labelled else np.full_like(labels, -1),
        declared=[portion.part for portion, piece in zip(entry.portions, pieces, strict=True) for _ in piece.keys],
        store=JoinedStore([piece.store for piece in pieces]),
        hints=entry.hints,
        notes=_notes(entry, pieces),
    )


def _notes(entry: NamedSet, pieces: Sequence[Piece]) -> tuple[str, ...]:
    """Say what is special, and whether all images are there: an unpacking that was broken off leaves fewer."""
    notes = [f"{entry.title}: {entry.note}"] if entry.note else []
    published, here = [portion.count for portion in entry.portions], [len(piece.keys) for piece in pieces]
    if published != here:
        notes.append(f"{entry.title} was published with {_sum(published)} images; {_sum(here)} are here")
    return tuple(notes)


def _sum(counts: Sequence[int]) -> str:
    return " + ".join(f"{count:,}" for count in counts)
