"""PASCAL VOC's layout for classification: `ImageSets/Main/cat_train.txt` lists images with and without a cat."""

import io
import re
from pathlib import Path

import numpy as np

from paucal.data.images import UNKNOWN, ImageSet
from paucal.data.sources.labels import several_notes
from paucal.data.sources.locating import FileFinder, leads_out, plain_path
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import PARTS, TRAINVAL
from paucal.data.stores import FileStore
from paucal.reading import read_decoded
from paucal.types import UserError
from paucal.wording import counted, was

LISTS, IMAGES = Path("ImageSets/Main"), Path("JPEGImages")
MAX_BYTES = 256 << 20
_MEANING = {1: 1, 0: UNKNOWN, -1: 0}  # mark in a list: value in a multi-hot row
_LINE = re.compile(r"(?P<image>\S.*?)\s+(?P<sign>-?[01])")


def is_voc(folder: Path) -> bool:
    """Whether a folder has the lists of classes and the images of PASCAL VOC."""
    return (folder / IMAGES).is_dir() and bool(_class_part_lists(folder))


def open_voc(root: Path, labelled: bool = True) -> ImageSet:
    """Open the images of the lists `<class>_<part>.txt`, where each image has a mark 1, 0 (difficult) or -1.

    If an image is in several classes, all images may have several labels or none, and a difficult class is an unknown
    label, as in VOC's own evaluation. Otherwise each image has one label, and images without a class are left out.
    """
    signs: dict[str, dict[str, int]] = {}
    parts: dict[str, str] = {}
    encoding_notes: dict[str, None] = {}
    for file, name, part in _class_part_lists(root):
        rows_of_list, note = _read_list(file)
        encoding_notes |= {note: None} if note else {}
        for image, sign in rows_of_list:
            if parts.setdefault(image, part) != part:
                raise UserError(f"{image!r} is in the lists of {parts[image]} and {part} of {root}; keep it in one.")
            if (first_sign := signs.setdefault(image, {}).setdefault(name, sign)) != sign:
                raise UserError(
                    f"{image!r} has the marks {first_sign} and {sign} for {name!r} in the lists of {root}; keep one."
                )
    shown = {image: {name for name, sign in row.items() if sign == 1} for image, row in signs.items()}
    several = labelled and any(len(names) > 1 for names in shown.values())
    unlabelled = [image for image, names in shown.items() if labelled and not several and not names]
    labelled_names = sorted(set(shown) - set(unlabelled))
    notes = list(encoding_notes)
    if unlabelled:
        notes.append(f"{counted(len(unlabelled), 'image')} without a class {was(len(unlabelled))} left out")
    finder = FileFinder((root / IMAGES).resolve())
    files = {image: _file_of(finder, image, root) for image in labelled_names}
    missing = [image for image in labelled_names if not files[image]]
    if missing or not labelled_names:
        problem = f"lack {missing[0]!r}, which is in the lists" if missing else "have no class in the lists"
        raise UserError(f"the images of {root / IMAGES} {problem}; restore them.")
    classes = tuple(sorted({name for image in labelled_names for name in shown[image]})) if labelled else ()
    number = {name: index for index, name in enumerate(classes)}
    keys = [f"{IMAGES}/{files[image]}" for image in labelled_names]
    rows = np.asarray(
        [[_MEANING[signs[image].get(name, -1)] for name in classes] for image in labelled_names], dtype=np.int8
    )
    if several:
        numbers = [-1] * len(labelled_names)
        notes += several_notes(rows, f"such as {max(labelled_names, key=lambda image: len(shown[image]))!r}")
    else:
        numbers = [number[min(shown[image])] if labelled else -1 for image in labelled_names]
    return ImageSet(
        name=root.resolve().name,
        location=str(root.resolve()),
        classes=classes,
        keys=keys,
        labels=np.asarray(numbers, dtype=np.int64),
        declared=[parts[image] for image in labelled_names],
        store=FileStore(root.resolve(), keys),
        notes=(f"read from the lists in {LISTS}", *notes),
        multi_hot=rows if several else None,
    )


def _class_part_lists(root: Path) -> list[tuple[Path, str, str]]:
    """Return the lists of a set, each with the class and the part in its name."""
    files = sorted((root / LISTS).glob("[!.]*.[tT][xX][tT]"))
    name_parts = [(file, *file.stem.rpartition("_")[::2]) for file in files]
    lists = [(file, name, part.lower()) for file, name, part in name_parts if name and part.lower() in PARTS]
    has_train_list = any(part != TRAINVAL and PARTS[part] == "train" for _, _, part in lists)
    return [(file, name, PARTS[part]) for file, name, part in lists if not (has_train_list and part == TRAINVAL)]


def _read_list(file: Path) -> tuple[list[tuple[str, int]], str]:
    """Return the images of a list with their marks (1, 0 or -1), and a note on the encoding of the file."""
    rows, (text, _, note) = [], read_decoded(file, MAX_BYTES)
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        match = _LINE.fullmatch(line.strip())
        if line.strip() and (match is None or leads_out(plain_path(match["image"]))):
            raise UserError(f"line {number} of {file} is {line[:80].strip()!r}; expected an image and 1, 0 or -1.")
        if match is not None:
            rows.append((_image_name(match["image"]), int(match["sign"])))
    return rows, note


def _image_name(text: str) -> str:
    """Return the name of an image without the folder and suffix that some programs add."""
    name = plain_path(text).removeprefix(f"{IMAGES}/")
    return name[: -len(Path(name).suffix)] if name.lower().endswith(IMAGE_SUFFIXES) else name


def _file_of(finder: FileFinder, image: str, root: Path) -> str:
    """Return the file of an image, relative to the folder of images; "" if it does not exist."""
    files = finder.find(image)
    files = [file for file in files if file.lower().endswith((".jpg", ".jpeg"))] or files
    if len(files) > 1:
        raise UserError(f"{image!r} in the lists of {root} matches {files[0]} and {files[1]}: remove one of the files.")
    return files[0] if files else ""
