"""A subset of the classes of an image set, chosen by a file of names."""

import difflib
import io
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np

from paucal.data.class_names import plain_name
from paucal.data.images import ImageSet
from paucal.reading import read_decoded
from paucal.types import UserError

MOST_BYTES = 16 << 20


def shipped_lists() -> list[str]:
    """Return the names of the lists that come with paucal.

    Example:
        >>> shipped_lists()
        ['cifar10-first-five', 'cifar10-last-five', 'digits-0-to-4', 'digits-5-to-9', 'imagenet100']
    """
    return sorted(entry.name.removesuffix(".txt") for entry in _shipped().iterdir() if entry.name.endswith(".txt"))


def read_class_list(source: str | Path) -> list[str]:
    """Read the names of classes from a file with one name per line.

    Blank lines and lines that begin with '#' are skipped; a '#' further on belongs to the name.

    Args:
        source: path of the file, or the name of a list that comes with paucal; a path that exists wins.

    Raises:
        UserError: there is no such file, it is no text, or it names no class or one class twice.

    Example:
        >>> len(read_class_list("imagenet100")), read_class_list("imagenet100")[0]
        (100, 'n01558993')
    """
    lines = [line.strip() for line in io.StringIO(_text(source), newline=None)]
    names = [plain_name(line) for line in lines if line and not line.startswith("#")]
    if not names:
        raise UserError(f"{source} names no classes; expected one name per line")
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise UserError(f"{source} names the class '{twice}' more than once; keep one of the lines")
    return names


def choose_classes(images: ImageSet, source: str | Path) -> ImageSet:
    """Return the images of some classes only.

    The classes keep the order they have in the set, whatever the order in the file, and are numbered anew from 0. The
    parts that the set declares stay as they are. Where images may have several labels all of them stay: one that is of
    none of the classes is an image without a label.

    Args:
        images: a set with classes.
        source: as in `read_class_list`.

    Raises:
        UserError: the set has no classes, the file names fewer than two or one that the set does not have.
    """
    names = read_class_list(source)
    if not images.classes:
        raise UserError(f"--classes {source} chooses classes, and {images.location} was opened without labels")
    known = set(images.classes)
    if unknown := [name for name in names if name not in known]:
        raise UserError(
            f"{len(unknown)} of the {len(names)} classes of {source} are not in {images.location} "
            f"(such as '{unknown[0]}'{_near(unknown[0], images.classes)}); correct the file or the data"
        )
    if len(names) < 2:
        raise UserError(f"{source} names only one class ('{names[0]}'); training a classifier needs at least two")
    chosen = set(names)
    kept = tuple(name for name in images.classes if name in chosen)
    numbers = np.asarray([kept.index(name) if name in chosen else -1 for name in images.classes], dtype=np.int64)
    note = f"{len(kept)} of {len(images.classes)} classes are used ({Path(source).name})"
    if images.multi_hot is not None:
        return replace(images, classes=kept, multi_hot=images.multi_hot[:, numbers >= 0], notes=(*images.notes, note))
    labels = np.where(images.labels >= 0, numbers[images.labels], -1)
    selected = images.select(np.flatnonzero(labels >= 0), note)
    return replace(selected, classes=kept, labels=labels[labels >= 0])


def _shipped():
    return resources.files("paucal.data") / "class_lists"


def _text(source: str | Path) -> str:
    path = Path(source).expanduser()
    shipped = shipped_lists()
    if not path.exists() and str(source) in shipped:
        return (_shipped() / f"{source}.txt").read_text(encoding="utf-8")
    if not path.is_file():
        raise UserError(
            f"{path} is no file; expected one with a class name on each line, or the name of a list that comes with "
            f"paucal ({', '.join(shipped)})"
        )
    return read_decoded(path, MOST_BYTES).text


def _near(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    shown = " or ".join(f"'{word}'" for word in near)
    return f", did you mean {shown}?" if near else f"; it has {', '.join(known[:2])}, ..."
