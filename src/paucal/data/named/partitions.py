"""Official partitions of a data set that use a few of its images, told by lists of files beside it.

torchvision's SUN397 has all images and none of the ten partitions, of which papers report the first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.named.table import Lists, NamedSet
from paucal.reading import read_text
from paucal.types import UserError
from paucal.wording import shortened

MOST_BYTES = 16 << 20  # of a list; the official ones have about a mebibyte
MOST_SHOWN = 80  # characters of a line


def by_lists(entry: NamedSet, images: ImageSet, root: Path) -> ImageSet:
    """Return the images that the lists of a set name, in the parts that these are of; all, with a note, without lists.

    Args:
        entry: the set, which may have lists.
        images: all of its images.
        root: folder of named sets.

    Raises:
        UserError: one list of a partition is there and another is not; or a line of one is no image of the set, or one
            that was named before.
    """
    lists = entry.lists
    if lists is None:
        return images
    files = {
        part: next((file for folder in lists.folders if (file := root / folder / name).exists()), None)
        for part, name in lists.files.items()
    }
    missing = [lists.files[part] for part, file in files.items() if file is None]
    if len(missing) == len(files):
        note = f"{entry.title}: the parts are ours; for the {lists.title} {_put(lists, root)}"
        hints = replace(images.hints, official_parts=_put(lists, root))
        return replace(images, notes=(*images.notes, note), hints=hints)
    if missing:
        raise UserError(f"the lists of {entry.title} lack {' and '.join(missing)}: {_put(lists, root)}.")
    parts = _parts({part: file for part, file in files.items() if file is not None}, entry, lists, images, root)
    declared = [parts[place] for place in sorted(parts)]
    chosen = images.select(np.asarray(sorted(parts), dtype=np.int64))
    return replace(chosen, declared=declared, notes=(*images.notes, *_notes(entry, lists, declared)))


def _parts(files: Mapping[str, Path], entry: NamedSet, lists: Lists, images: ImageSet, root: Path) -> dict[int, str]:
    """Return the part of each image that is named, by its position: names lead nowhere else."""
    places = {key: place for place, key in enumerate(images.keys)}
    parts: dict[int, str] = {}
    for part, file in files.items():
        for where, line in _lines(file):
            place = places.get(f"{lists.prefix}{line}")
            if place is None:
                raise UserError(
                    f"{where} is {shortened(line, MOST_SHOWN)!r}, and no such image of {entry.title} is in {root}; "
                    f"expected one such as {lists.example!r}: unpack the official archives again."
                )
            if place in parts:
                raise UserError(f"{where} names {line!r} for the second time: unpack {lists.archive} again.")
            parts[place] = part
        if part not in parts.values():
            raise UserError(f"{file} names no images: unpack {lists.archive} again.")
    return parts


def _put(lists: Lists, root: Path) -> str:
    return f"put {' and '.join(lists.files.values())} of {lists.archive} into {root / lists.folders[0]}"


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yield where each line of a list stands, and the line."""
    try:
        text = read_text(file, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"{str(file)!r} cannot be read as a list of images ({problem}): unpack it again.") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield f"line {number} of {file}", line.strip()


def _notes(entry: NamedSet, lists: Lists, declared: list[str]) -> list[str]:
    here = {part: declared.count(part) for part in lists.counts}
    notes = [f"{entry.title}: the parts are those of the {lists.title}; its other images are not used"]
    if here != dict(lists.counts):
        published, found = (" + ".join(f"{count:,}" for count in of.values()) for of in (lists.counts, here))
        notes.append(f"the {lists.title} was published with {published} images; {found} are here")
    return notes
