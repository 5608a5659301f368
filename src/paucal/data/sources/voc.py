"""PASCAL VOC's layout for classification: `ImageSets/Main/cat_train.txt` says of each image whether it shows a cat."""

import io
import re
from pathlib import Path

import numpy as np

from paucal.data.images import UNKNOWN, ImageSet
from paucal.data.sources.labels import Labels, labels_from_names, multi_hot_labels
from paucal.data.sources.locating import FileFinder, leads_out, plain_path
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.sources.table_reading import MAX_LIST_BYTES
from paucal.data.splits.part_names import PART_BY_WORD, TRAINVAL
from paucal.data.stores import FileStore
from paucal.reading import read_decoded
from paucal.types import UserError
from paucal.wording import counted, was_or_were

LISTS, IMAGES = Path("ImageSets/Main"), Path("JPEGImages")
_LABEL_BY_MARK = {1: 1, 0: UNKNOWN, -1: 0}  # label for each mark in a list, in which 0 means "difficult"
_LINE = re.compile(r"(?P<image>\S.*?)\s+(?P<mark>-?[01])")


def is_voc(folder: Path) -> bool:
    """Return whether a folder has PASCAL VOC's folder of images and lists of classes."""
    return (folder / IMAGES).is_dir() and bool(_list_files(folder))


def open_voc(root: Path, labelled: bool = True) -> ImageSet:
    """Open the images in the lists `<class>_<split>.txt`, which mark each image with 1, 0 (difficult) or -1.

    If any image is in several classes, the set is multi-label, with unknown labels for "difficult", as in VOC's
    evaluation. Otherwise each image has one label, and images without a class are left out.
    """
    marks: dict[str, dict[str, int]] = {}  # mark of each image for each class, by image, then by class
    parts: dict[str, str] = {}
    encoding_notes: dict[str, None] = {}
    for file, name, part in _list_files(root):
        rows_of_list, note = _read_list(file)
        encoding_notes |= {note: None} if note else {}
        for image, mark in rows_of_list:
            if parts.setdefault(image, part) != part:
                raise UserError(
                    f"{image!r} is in the lists for {parts[image]} and {part} in {root}; keep the image in one list."
                )
            if (first_mark := marks.setdefault(image, {}).setdefault(name, mark)) != mark:
                raise UserError(
                    f"{image!r} has the marks {first_mark} and {mark} for {name!r} in the lists in {root}; keep one "
                    "mark."
                )
    classes_of = {image: {name for name, mark in row.items() if mark == 1} for image, row in marks.items()}
    is_multi_label = labelled and any(len(names) > 1 for names in classes_of.values())
    unlabelled = [image for image, names in classes_of.items() if labelled and not is_multi_label and not names]
    kept_images = sorted(set(classes_of) - set(unlabelled))
    notes = list(encoding_notes)
    if unlabelled:
        notes.append(f"{counted(len(unlabelled), 'image')} without a class {was_or_were(len(unlabelled))} left out")
    finder = FileFinder((root / IMAGES).resolve())
    files = {image: _find_image_file(finder, image, root) for image in kept_images}
    if not all(files.values()) or not files:
        missing = next((f"lacks {image!r}, which is in the lists" for image, file in files.items() if not file), "")
        problem = missing or "has no image with a class in the lists"
        raise UserError(f"{root / IMAGES} {problem}; restore the original files.")
    classes = tuple(sorted({name for image in kept_images for name in classes_of[image]})) if labelled else ()
    keys = [f"{IMAGES}/{files[image]}" for image in kept_images]
    labels = Labels.unlabelled(len(kept_images))
    if is_multi_label:
        example = max(kept_images, key=lambda image: len(classes_of[image]))
        rows = [[_LABEL_BY_MARK[marks[image].get(name, -1)] for name in classes] for image in kept_images]
        labels = multi_hot_labels(classes, np.asarray(rows, dtype=np.int8), f"such as {example!r}")
    elif labelled:
        labels = labels_from_names([sorted(classes_of[image]) for image in kept_images], False, "")
    return ImageSet(
        name=root.resolve().name,
        location=str(root.resolve()),
        classes=labels.classes,
        keys=keys,
        labels=labels.class_numbers,
        declared_splits=[parts[image] for image in kept_images],
        store=FileStore(root.resolve(), keys),
        notes=(f"read from the lists in {LISTS}", *notes, *labels.notes),
        multi_hot=labels.multi_hot,
    )


def _list_files(root: Path) -> list[tuple[Path, str, str]]:
    """Return the text files that list images, each with the class and the split (train, val or test) in its name."""
    files = sorted((root / LISTS).glob("[!.]*.[tT][xX][tT]"))
    name_parts = [(file, *file.stem.rpartition("_")[::2]) for file in files]
    lists = [(file, name, part.lower()) for file, name, part in name_parts if name and part.lower() in PART_BY_WORD]
    has_train_list = any(part != TRAINVAL and PART_BY_WORD[part] == "train" for _, _, part in lists)
    return [(file, name, PART_BY_WORD[part]) for file, name, part in lists if not (has_train_list and part == TRAINVAL)]


def _read_list(file: Path) -> tuple[list[tuple[str, int]], str]:
    """Return the images in a list with their marks (1, 0 or -1), and a note on the encoding of the file."""
    rows, (text, _, note) = [], read_decoded(file, MAX_LIST_BYTES)
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        match = _LINE.fullmatch(line.strip())
        if line.strip() and (match is None or leads_out(plain_path(match["image"]))):
            raise UserError(f"line {number} of {file} is {line[:80].strip()!r}; expected an image and 1, 0 or -1.")
        if match is not None:
            name = plain_path(match["image"]).removeprefix(f"{IMAGES}/")
            if name.lower().endswith(IMAGE_SUFFIXES):  # some programs add the folder and the suffix
                name = name[: -len(Path(name).suffix)]
            rows.append((name, int(match["mark"])))
    return rows, note


def _find_image_file(finder: FileFinder, image: str, root: Path) -> str:
    """Return the path of the file of an image, relative to the folder of images; "" if there is no such file."""
    files = finder.find(image)
    files = [file for file in files if file.lower().endswith((".jpg", ".jpeg"))] or files
    if len(files) > 1:
        raise UserError(f"{image!r} in the lists of {root} matches {files[0]} and {files[1]}: remove one of the files.")
    return files[0] if files else ""
