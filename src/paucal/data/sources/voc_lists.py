"""PASCAL VOC's layout for classification: `ImageSets/Main/cat_train.txt` says of each image whether it shows a cat."""

import re
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.sources.folder import IMAGE_SUFFIXES
from paucal.data.sources.stores import FileStore
from paucal.reading import read_text
from paucal.types import UserError
from paucal.wording import counted, was

LISTS, IMAGES = Path("ImageSets/Main"), Path("JPEGImages")
MOST_BYTES = 256 << 20
_FILE = re.compile(r"(?P<name>.+)_(?P<part>train|val|test)\.txt")
_LINE = re.compile(r"(?P<image>[^\s/\\]+)\s+(?P<sign>-?[01])")


def is_voc(folder: Path) -> bool:
    """Whether a folder has lists of classes and images as PASCAL VOC has them."""
    return (folder / IMAGES).is_dir() and bool(_lists(folder))


def open_voc(root: Path, labelled: bool = True) -> ImageSet:
    """Open images whose classes are told by lists, `<class>_<part>.txt` with 1, 0 (difficult) or -1 for each image.

    Raises:
        UserError: a line is none, an image is of no class or of several, or has no file.
    """
    shown: dict[str, set[str]] = {}
    parts: dict[str, str] = {}
    for file, name, part in _lists(root):
        for image, sign in _lines(file):
            if parts.setdefault(image, part) != part:
                raise UserError(f"{image!r} is in the lists of {parts[image]} and {part} of {root}; keep it in one")
            shown.setdefault(image, set()).update({name} if sign == 1 else set())
    several = [image for image, names in shown.items() if len(names) > 1]
    if labelled and several:
        raise UserError(
            f"{len(several)} of {len(shown)} images of {root} have several classes (such as {several[0]!r}: "
            f"{', '.join(sorted(shown[several[0]]))}), and paucal trains on one label for each image: keep those with "
            "one class; 'paucal eval' judges voc2007 by its several labels"
        )
    bare = [image for image, names in shown.items() if labelled and not names]
    kept = sorted(set(shown) - set(bare))
    notes = [f"{counted(len(bare), 'image')} without a class {was(len(bare))} left out"] if bare else []
    files = {path.stem: path.name for path in (root / IMAGES).iterdir() if path.name.lower().endswith(IMAGE_SUFFIXES)}
    missing = [image for image in kept if image not in files]
    if missing or not kept:
        told = f"lack {missing[0]!r}, which the lists name" if missing else "have no class in the lists"
        raise UserError(f"the images of {root / IMAGES} {told}; restore them")
    classes = tuple(sorted({name for image in kept for name in shown[image]})) if labelled else ()
    number = {name: place for place, name in enumerate(classes)}
    keys = [f"{IMAGES}/{files[image]}" for image in kept]
    return ImageSet(
        name=root.resolve().name,
        location=str(root.resolve()),
        classes=classes,
        keys=keys,
        labels=np.asarray([number[min(shown[image])] if labelled else -1 for image in kept], dtype=np.int64),
        declared=[parts[image] for image in kept],
        store=FileStore(root.resolve(), keys),
        notes=(f"read from the lists in {LISTS}", *notes),
    )


def _lists(root: Path) -> list[tuple[Path, str, str]]:
    found = [(file, _FILE.fullmatch(file.name)) for file in sorted((root / LISTS).glob("*.txt"))]
    return [(file, match["name"], match["part"]) for file, match in found if match]


def _lines(file: Path) -> list[tuple[str, int]]:
    found = []
    for number, line in enumerate(read_text(file, MOST_BYTES, errors="surrogateescape").splitlines(), start=1):
        match = _LINE.fullmatch(line.strip())
        if match is None and line.strip():
            raise UserError(f"line {number} of {file} is {line[:80]!r}; expected an image and 1, 0 or -1")
        if match is not None:
            found.append((match["image"], int(match["sign"])))
    return found
