"""Opens published data sets by name, with their official splits; refuses missing or damaged files with advice."""

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.named.readers import PortionImages, download_portion, read_portion
from paucal.data.named.table import NAMED, NamedSet, PartitionLists, advice_on_missing, data_root, find_set_root
from paucal.data.stores import JoinedStore
from paucal.reading import read_text
from paucal.types import UserError
from paucal.wording import shorten

MAX_LIST_BYTES = 16 << 20  # size of the largest list of images that is read; official lists are about 1 MiB large
MAX_SHOWN_CHARACTERS = 80  # largest number of characters of a line that a message shows


def open_named(name: str, root: str | Path | None = None, download: bool = False, labelled: bool = True) -> ImageSet:
    """Open a published data set by name, with the official splits (train, val and test).

    As in the DrLoc paper, the official validation images of Flowers102 belong to train, from which `make_split` then
    takes a validation split. With `download`, torchvision may download missing files, or unpack official archives.
    """
    entry, folder = NAMED[name], data_root(root)
    if labelled and not entry.labelled:
        raise UserError(
            f"the labels of the data set '{name}' are not read, so a classifier cannot be trained or tested: "
            f"use 'paucal pretrain {name}', which learns from the images without labels, or give another data set."
        )
    _require_package(entry.package, entry)
    set_root = find_set_root(entry, folder)
    if set_root is None:
        if not (download and entry.downloadable):
            raise UserError(f"the data set '{name}' is not in {folder}: {advice_on_missing(name, folder)}.")
        _download_set(name, folder)
        set_root = folder
    try:
        portions = [read_portion(name, set_root, portion, labelled) for portion in entry.portions]
        images = _join_portions(name, set_root, portions, labelled)
    except UserError:  # the message is already clear
        raise
    except Exception as problem:  # damaged files may raise nearly any exception
        damaged_paths, place = " and ".join(entry.unpacked_paths), set_root / entry.folder
        remove_files = f"remove {damaged_paths} from {set_root}, then " if damaged_paths else ""
        raise UserError(
            f"the data set '{name}' in {set_root if entry.alternative_folders else place} is incomplete or damaged "
            f"({_failure_reason(problem)}); {remove_files}{advice_on_missing(name, folder)}."
        ) from problem
    return _restrict_to_lists(entry, images, set_root)


def _require_package(package: str, entry: NamedSet) -> None:
    if package and importlib.util.find_spec(package) is None:
        raise UserError(
            f"{entry.title} needs the package {package}, which is not installed; run pip install 'paucal[datasets]'."
        )


def _download_set(name: str, root: Path) -> None:
    entry = NAMED[name]
    _require_package(entry.download_package, entry)
    try:
        for portion in entry.portions:
            download_portion(name, root, portion)
    except Exception as problem:  # torchvision does not catch exceptions of the network, the disk or an archive
        raise UserError(
            f"the data set '{name}' could not be downloaded ({_failure_reason(problem)}); "
            f"{advice_on_missing(name, root, download_failed=True)}."
        ) from problem


def _failure_reason(problem: Exception) -> str:
    if isinstance(problem, RuntimeError) and "download=True" in str(problem):
        return "files are missing or differ from the official files"
    return " ".join(str(problem).split()).rstrip(".") or type(problem).__name__


def _join_portions(name: str, root: Path, portions: Sequence[PortionImages], labelled: bool) -> ImageSet:
    """Return the images of all portions as one set; raise a `ValueError` if the portions contradict each other."""
    entry, classes = NAMED[name], portions[0].classes
    labels = np.concatenate([images.labels for images in portions])
    keys = [key for images in portions for key in images.keys]
    if not keys:
        raise ValueError("there are no images")
    if any(images.classes != classes for images in portions) or len(set(classes)) < len(classes):
        raise ValueError("the splits have different class names, or a class name occurs twice")
    if len(set(keys)) < len(keys):
        raise ValueError("an image is listed twice")
    if labelled and (labels.min(initial=0) < 0 or labels.max(initial=0) >= len(classes)):
        raise ValueError(f"a label is not one of the data set's {len(classes)} classes")
    notes = [f"{entry.title}: {entry.note}"] if entry.note else []
    published, available = [portion.count for portion in entry.portions], [len(images.keys) for images in portions]
    if published != available:  # some archives may not have been unpacked
        notes.append(_count_note(entry.title, published, available))
    return ImageSet(
        name=name,
        location=str(root),
        classes=classes if labelled else (),
        keys=keys,
        labels=labels if labelled else np.full_like(labels, -1),
        declared_splits=[
            portion.part for portion, images in zip(entry.portions, portions, strict=True) for _ in images.keys
        ],
        store=JoinedStore([images.store for images in portions]),
        hints=entry.hints,
        notes=tuple(notes),
    )


def _count_note(title: str, published: Iterable[int], available: Iterable[int]) -> str:
    """Return a note that fewer or more images exist than were published; counts are per portion or split."""
    published_text, available_text = (" + ".join(f"{n:,}" for n in counts) for counts in (published, available))
    return f"{title} was published with {published_text} images, but {available_text} exist here"


def _restrict_to_lists(entry: NamedSet, images: ImageSet, root: Path) -> ImageSet:
    """Return only the images in the lists of an official partition, if they exist, with the splits of the partition."""
    # torchvision ignores the ten official partitions of SUN397; papers use the first.
    lists = entry.lists
    if lists is None:
        return images
    candidates = {part: [root / folder / name for folder in lists.folders] for part, name in lists.files.items()}
    files = {part: next((file for file in paths if file.exists()), None) for part, paths in candidates.items()}
    missing = [lists.files[part] for part, file in files.items() if file is None]
    if len(missing) == len(files):
        advice = _placement_advice(lists, root)
        note = f"{entry.title}: paucal splits the images; to use the {lists.title}, {advice}"
        hints = replace(images.hints, official_split_advice=advice)
        return replace(images, notes=(*images.notes, note), hints=hints)
    if missing:
        raise UserError(f"the lists of {entry.title} lack {' and '.join(missing)}: {_placement_advice(lists, root)}.")
    parts = _listed_parts({part: file for part, file in files.items() if file is not None}, entry, lists, images, root)
    declared = [parts[index] for index in sorted(parts)]
    listed_set = images.select(np.asarray(sorted(parts), dtype=np.int64))
    available_counts = {part: declared.count(part) for part in lists.counts}
    notes = [f"{entry.title}: train and test are the {lists.title}; other images are not used"]
    if available_counts != dict(lists.counts):
        notes.append(_count_note(f"the {lists.title}", lists.counts.values(), available_counts.values()))
    return replace(listed_set, declared_splits=declared, notes=(*images.notes, *notes))


def _listed_parts(
    files: Mapping[str, Path], entry: NamedSet, lists: PartitionLists, images: ImageSet, root: Path
) -> dict[int, str]:
    """Return the split of each listed image, by position; raise a UserError for a line without a known image."""
    index_by_key = {key: index for index, key in enumerate(images.keys)}
    parts: dict[int, str] = {}
    for part, file in files.items():
        try:
            text = read_text(file, MAX_LIST_BYTES)
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(
                f"{str(file)!r} cannot be read as a list of images ({problem}): unpack {lists.archive} again."
            ) from None
        for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
            if not line:
                continue
            context = f"line {number} of {file}"
            index = index_by_key.get(f"{lists.prefix}{line}")
            if index is None:
                raise UserError(
                    f"{context} is {shorten(line, MAX_SHOWN_CHARACTERS)!r}, but no such image of {entry.title} is in "
                    f"{root}; expected a line such as {lists.example!r}: unpack the official archives again."
                )
            if index in parts:
                raise UserError(f"{context} repeats the image {line!r}: unpack {lists.archive} again.")
            parts[index] = part
        if part not in parts.values():
            raise UserError(f"{file} names no images: unpack {lists.archive} again.")
    return parts


def _placement_advice(lists: PartitionLists, root: Path) -> str:
    return f"put {' and '.join(lists.files.values())} from {lists.archive} into {root / lists.folders[0]}"
