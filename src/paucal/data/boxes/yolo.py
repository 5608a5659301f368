"""Reads boxes and outlines from YOLO text files, one per image, and classes and splits from YAML or text files.

Coordinates are fractions of the image's width and height, and classes are numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from paucal.data.boxes.annotations import (
    MAX_CLASSES,
    AnnotatedImage,
    AnnotationSet,
    Layout,
    polygon_of_points,
    shorten_notes,
    unique_class_names,
)
from paucal.data.boxes.naming import ImageFinder, MissingImage, assign_images, normalise_name, split_path
from paucal.data.boxes.tree import Tree, ascii_bytes
from paucal.data.classes import class_names_by_line, plain_name
from paucal.data.sources.locating import UPLOAD_PREFIX
from paucal.data.splits.part_names import PART_BY_WORD
from paucal.reading import MAX_CONFIG_BYTES, parse_yaml, read_decoded
from paucal.types import UserError
from paucal.wording import counted, was_or_were

TEXT_SUFFIX, YAML_SUFFIXES = ".txt", (".yaml", ".yml")
# Names of files with class names, and endings of such names.
NAME_FILES, NAME_ENDINGS = ("classes.txt",), (".names", ".labels")
HEAD_BYTES = 1 << 12  # bytes at the start of a label file that are searched for the first object
MAX_FILES_SEARCHED = 200  # number of label files that are searched for an object, to recognise the layout
# A line with a box has 5 numbers (class, centre x and y, width, height). A line with an outline has 7 or more numbers
# (class, and x and y of three or more points).
BOX_NUMBERS, MIN_OUTLINE_NUMBERS = 5, 7
# Largest distance of a coordinate from the image, as a fraction of the side; boxes are cut at the edge of the image.
MAX_OUTSIDE = 0.01


@dataclass(frozen=True)
class Config:
    """The classes and splits of a YOLO data set; `parts`, `base` and `shown_path` are empty without a YAML file."""

    shown_path: str = ""  # path of the YAML file as shown in messages
    names: Mapping[int, str] | None = None  # class names by number; None if no file names the classes
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)  # folders or list files of each split
    base: str = ""  # folder that the paths in `parts` are relative to
    has_points: bool = False  # whether lines in label files have keypoints after the box


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the YAML files that describe a YOLO data set, or the label files if there is no such YAML file."""
    configs = []
    for file in files:
        if file.lower().endswith(YAML_SUFFIXES):
            lines = ascii_bytes(tree.peek(file, MAX_CONFIG_BYTES)).splitlines()
            keys = {line.partition(b":")[0].strip(b"\"' ").lower() for line in lines if b":" in line}
            configs += [file] if b"names" in keys and keys & {name.encode() for name in PART_BY_WORD} else []
    if configs:
        return configs
    labels = _label_files(tree, files)
    return labels if any(_begins_with_object(tree, file) for file in labels[:MAX_FILES_SEARCHED]) else []


def read(tree: Tree, files: Sequence[str]) -> AnnotationSet:
    """Read the label files of a data set.

    An image with an empty label file has no objects. If a YAML file names the images of each split, an image without a
    label file also has no objects, as in Ultralytics' code.
    """
    config = _read_config(tree, files)
    notes: list[str] = []
    parts = _split_by_image(config, tree, ImageFinder(tree.images, tree), notes) if config.parts else {}
    labels = _label_files(tree, tree.files if config.shown_path else files)
    keys = assign_images(tree, {file: () for file in labels}, notes)
    # Files that are empty, or that begin with an object, are label files without an image.
    unmatched = [
        file
        for file in tree.files_ending(TEXT_SUFFIX)
        if file not in keys
        and PurePosixPath(file).stem.lower() not in PART_BY_WORD
        and (_begins_with_object(tree, file) or not ascii_bytes(tree.peek(file, HEAD_BYTES)).strip())
    ]
    if unmatched:
        count = f"{counted(len(unmatched), 'label file')} without an image {was_or_were(len(unmatched))} left out"
        notes.append(f"{count}, such as {unmatched[0]}")
    if not keys:
        raise MissingImage(f"{tree.shown_root!r} has no label files beside its images or in labels/: add label files.")
    store = tree.make_store(list(keys.values()))
    images: list[AnnotatedImage] = []
    encoding_notes: list[str] = []
    for index, (file, key) in enumerate(keys.items()):
        image = AnnotatedImage(key, declared_split=parts.get(key, ""), source=file)
        for number, line in enumerate(tree.read_lines(file, encoding_notes, keep_blank=True), 1):
            if line:
                _add_object(image, line, f"line {number} of {tree.shown_path(file)!r}", store.size(index), config)
        images.append(image)
    notes += shorten_notes(encoding_notes)
    labelled_keys = {image.key for image in images}
    if unlabelled := [key for key in parts if key not in labelled_keys]:
        images += [AnnotatedImage(key, declared_split=parts[key], source=config.shown_path) for key in unlabelled]
        count = counted(len(unlabelled), "image")
        notes.append(f"{count} without a label file {was_or_were(len(unlabelled))} read as having no objects")
    if config.names is not None:
        return AnnotationSet(images, {name: number for number, name in config.names.items()}, tuple(notes))
    notes.append("there is no data.yaml and no classes.txt, so the class numbers are used as class names")
    names = sorted({name for image in images for name in image.names}, key=int)
    return AnnotationSet(images, {name: int(name) for name in names}, tuple(notes))


def roots_of_config(file: Path) -> list[Path]:
    """Return the folders in which the images of a YAML file may be."""
    try:
        content = parse_yaml(read_decoded(file, MAX_CONFIG_BYTES).text)
    except (ValueError, UserError):
        content = None
    path = content.get("path") if isinstance(content, dict) else None
    stated_roots = [file.parent / path] if isinstance(path, str) and "\0" not in path else []
    return [root for root in (*stated_roots, file.parent, file.parent.parent) if root.is_dir()]


_EXPECTED_FILES = "YOLO labels/*.txt beside images/, with data.yaml or classes.txt"
LAYOUT = Layout("YOLO text files", _EXPECTED_FILES, YAML_SUFFIXES, find, read, roots=roots_of_config)


def _read_config(tree: Tree, files: Sequence[str]) -> Config:
    """Return the classes and splits in the YAML file, or else the classes in a text file such as `classes.txt`."""
    configs = [file for file in files if file.lower().endswith(YAML_SUFFIXES)]
    if not configs:
        return Config(names=_names_of_text_files(tree))
    if len(configs) > 1:
        raise UserError(
            f"{tree.shown_root!r} has several YAML files of a YOLO data set ({', '.join(configs[:3])}): give one of "
            "these files as DATA."
        )
    file, shown_path = configs[0], tree.shown_path(configs[0])
    try:
        content = parse_yaml(tree.read_text(file, MAX_CONFIG_BYTES))
    except ValueError as problem:
        raise UserError(f"{shown_path!r} cannot be read ({problem}): give the YAML file of a YOLO data set.") from None
    if not isinstance(content, dict):
        raise UserError(f"{shown_path!r} has no names and folders: give the YAML file of a YOLO data set.")
    parts: dict[str, list[str]] = {}
    for key, value in content.items():
        part = PART_BY_WORD.get(str(key).lower())
        if part and value:
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(path, str) for path in values):
                raise UserError(
                    f"{shown_path!r} gives {key} as {repr(value)[:80]}, expected a folder or a list: correct the entry."
                )
            parts.setdefault(part, []).extend(values)
    base, config_folder = content.get("path"), file.rpartition("/")[0]
    return Config(
        shown_path,
        _names_of_yaml(content.get("names"), tree, shown_path),
        parts,
        f"{config_folder}/{base}" if isinstance(base, str) else config_folder,
        bool(content.get("kpt_shape")),
    )


def _names_of_yaml(value: Any, tree: Tree, shown_path: str) -> dict[int, str] | None:
    """Return class names by number from the entry `names` of a YAML file: a list, a mapping, or the path of a file."""
    if value is None:
        return None
    if isinstance(value, str):
        file = next((file for file in tree.files if split_path(file)[-1:] == split_path(value)[-1:]), None)
        if file is None:
            raise UserError(f"{shown_path!r} gives {value!r} as the file of names, which does not exist: add it.")
        return _check_names(dict(enumerate(_listed_names(tree, file))), shown_path)
    pairs = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    names: dict[int, str] = {}
    for number, name in pairs:
        if isinstance(name, bool) or not isinstance(name, str | int | float) or not str(number).isdecimal():
            raise UserError(
                f"{shown_path!r} has the class number {number!r} with the name {name!r}, expected an integer and a "
                "text: put the name in quotes."
            )
        names[int(number)] = plain_name(str(name))
    if not names:
        raise UserError(
            f"{shown_path!r} has no names of classes: add a list of names, or a mapping from class numbers to names."
        )
    return _check_names(names, shown_path)


def _names_of_text_files(tree: Tree) -> dict[int, str] | None:
    """Return class names by number from a text file with one name per line; None if there is no such file."""
    files: dict[tuple[str, ...], str] = {}
    for file in tree.files:
        name = file.rpartition("/")[2].lower()
        if name in NAME_FILES or name.endswith(NAME_ENDINGS):
            files.setdefault(_listed_names(tree, file), file)
    if len(files) > 1:
        first, second = list(files.values())[:2]
        raise UserError(f"{first!r} and {second!r} in {tree.shown_root!r} name different classes: remove one of them.")
    return next((_check_names(dict(enumerate(names)), tree.shown_path(file)) for names, file in files.items()), None)


def _listed_names(tree: Tree, file: str) -> tuple[str, ...]:
    return tuple(map(plain_name, class_names_by_line(tree.read_lines(file, keep_blank=True), tree.shown_path(file))))


def _check_names(names: Mapping[int, str], shown_path: str) -> dict[int, str]:
    if len(names) > MAX_CLASSES:
        raise UserError(f"{shown_path!r} names {len(names):,} classes; at most {MAX_CLASSES:,} are read.")
    return unique_class_names(names)


def _split_by_image(config: Config, tree: Tree, finder: ImageFinder, notes: list[str]) -> dict[str, str]:
    """Return the split of each image that the YAML file names, by the key of the image."""
    parts: dict[str, str] = {}
    keys_by_part: dict[str, set[str]] = {}
    for part in ("train", "val", "test"):
        keys: set[str] = set()
        for value in config.parts.get(part, ()):
            images = _find_images_of_entry(value, config, tree, finder, part, notes)
            if images is None and part == "train":
                raise MissingImage(
                    f"{config.shown_path!r} gives {value!r} as the train images, but {tree.shown_root!r} has no such "
                    "images: correct the path."
                )
            if images is None:
                notes.append(f"the path of the {part} images, {value!r}, does not exist and was skipped")
            keys |= images or set()
        other_part = next((other for other, images in keys_by_part.items() if keys & images), None)
        if keys and other_part and keys_by_part[other_part] == keys:
            notes.append(f"{part} and {other_part} have the same images, which are used as {other_part} only")
            continue
        if other_part:
            common = sorted(keys & keys_by_part[other_part])
            raise UserError(
                f"{config.shown_path!r} has {counted(len(common), 'image')} in {other_part} and in {part}, such as "
                f"{common[0]!r}: give each image one split."
            )
        keys_by_part[part] = keys
        parts.update(dict.fromkeys(keys, part))
    return parts


def _find_images_of_entry(
    value: str, config: Config, tree: Tree, finder: ImageFinder, part: str, notes: list[str]
) -> set[str] | None:
    """Return the keys of the images in the folder or list that the YAML file names as `value`; None without images.

    A note on missing images is appended to `notes`.
    """
    folders = {normalise_name(path): path for image in tree.images for path in map(str, PurePosixPath(image).parents)}
    files = {normalise_name(file): file for file in tree.files_ending(TEXT_SUFFIX)}
    path = [*split_path(value)]
    while path and "*" in path[-1]:
        path.pop()
    # The path may begin with folders above the data set, so its leading folders are removed one by one.
    full_path = [*split_path(config.base), *path]
    for index in range(len(full_path) + 1):
        if any(folder.lower() in PART_BY_WORD for folder in full_path[:index]) and index > len(full_path) - len(path):
            break  # "train/images" must not become "images"
        name = normalise_name("/".join(full_path[index:]) or ".")
        if name in files:
            lines = tree.read_lines(files[name])
            image_keys = finder.find_images(lines, files[name], part)
            missing = [line for line, key in zip(lines, image_keys, strict=True) if key is None]
            if 0 < len(missing) < len(lines):
                text = f"{counted(len(missing), 'line')} of {files[name]} without an image"
                notes.append(f"{text}, such as {missing[0][:80]!r}")
            return {key for key in image_keys if key is not None} or None
        if name in folders and (full_path[index:] or not full_path):
            prefix = "" if folders[name] == "." else f"{folders[name]}/"
            return {image for image in tree.images if image.startswith(prefix)}
    return None


def _label_files(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the text files that have the stem of an image, except list files of splits, such as "train.txt"."""
    texts = [file for file in files if file.lower().endswith(TEXT_SUFFIX)]
    stems = {normalise_name(PurePosixPath(image).stem) for image in tree.images} if texts else set()
    names = {file: normalise_name(PurePosixPath(file).stem) for file in texts}
    labels = [file for file, name in names.items() if name in stems or UPLOAD_PREFIX.sub("", name, count=1) in stems]
    lists = {file for file in labels if PurePosixPath(file).stem.lower() in PART_BY_WORD}
    return [file for file in labels if file not in lists or "labels" in file.lower().split("/")[:-1]]


def _begins_with_object(tree: Tree, file: str) -> bool:
    """Return whether the first line of a text file is an object: a class number, and at least four numbers."""
    head = ascii_bytes(tree.peek(file, HEAD_BYTES)).strip()
    try:
        numbers = [float(text) for text in head.splitlines()[0].split()] if head else []
    except ValueError:
        return False
    return len(numbers) >= BOX_NUMBERS and numbers[0] >= 0 and numbers[0].is_integer()


def _add_object(image: AnnotatedImage, line: str, context: str, size: tuple[int, int], config: Config) -> None:
    """Add the object in a line of a label file to an image of `size` (height, width); `context` names the line."""
    try:
        number, *values = [float(text) for text in line.split()]
        label = int(number)
    except (ValueError, OverflowError):
        number, label, values = 0.5, 0, []  # an invalid class number, refused below
    values = values[: BOX_NUMBERS - 1] if config.has_points else values
    count = len(values) + 1
    if label != number or label < 0 or not (count == BOX_NUMBERS or (count >= MIN_OUTLINE_NUMBERS and count % 2)):
        raise UserError(
            f"{context} is {line[:80]!r}, expected a class number and either four numbers (centre x and y, width, "
            "height) or the x and y of three or more points: correct the line."
        )
    if config.names is not None and label not in config.names:
        raise UserError(
            f"{context} has the class {label}, but {config.shown_path or 'the file of classes'} names "
            f"{counted(len(config.names), 'class', 'classes')} (0 to {max(config.names)}): add the class name, or "
            "correct the line."
        )
    name = str(label) if config.names is None else config.names[label]
    if min(values) < -MAX_OUTSIDE or max(values) > 1 + MAX_OUTSIDE:
        raise UserError(
            f"{context} is {line[:80]!r}, with a number below 0 or above 1: give fractions of the width and height of "
            "the image."
        )
    height, width = size
    if len(values) == BOX_NUMBERS - 1:
        x, y, box_width, box_height = values
        left, top, right, bottom = x - box_width / 2, y - box_height / 2, x + box_width / 2, y + box_height / 2
        image.add(name, (left * width, top * height, right * width, bottom * height))
        return
    points = [(x * width, y * height) for x, y in zip(values[::2], values[1::2], strict=True)]
    image.add(name, *polygon_of_points(points))
