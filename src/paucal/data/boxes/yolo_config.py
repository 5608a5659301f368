"""What a YOLO set says beside its labels: names of classes, and the images of each part, in YAML or in text files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from paucal.data.boxes.described import MOST_CLASSES, without_repetition
from paucal.data.boxes.naming import MissingImage, Names, folded, folders_of
from paucal.data.boxes.parts import lines_of
from paucal.data.boxes.tree import Tree, plain
from paucal.data.classes import plain_name
from paucal.data.splits.part_names import PARTS
from paucal.reading import MOST_CONFIG_BYTES, parse_yaml, read_decoded
from paucal.types import UserError
from paucal.wording import counted

YAML = (".yaml", ".yml")
NAME_FILES, NAME_ENDINGS = ("classes.txt",), (".names", ".labels")


@dataclass(frozen=True)
class Config:
    """The configuration of a YOLO set.

    Attributes:
        place: Name of its file in messages; "" where there is none.
        names: Name of each class by its number; None where none are told.
        parts: Folders or lists of the images of each part; none where they are told by other means.
        base: Folder that these are relative to.
        has_points: Whether labels have key points behind the box.
    """

    place: str = ""
    names: Mapping[int, str] | None = None
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    base: str = ""
    has_points: bool = False


def is_config(tree: Tree, file: str) -> bool:
    """Return whether a file looks like the YAML of a YOLO set."""
    if not file.lower().endswith(YAML):
        return False
    lines = plain(tree.peek(file, MOST_CONFIG_BYTES)).splitlines()
    keys = {line.partition(b":")[0].strip(b"\"' ").lower() for line in lines if b":" in line}
    return b"names" in keys and bool(keys & {name.encode() for name in PARTS})


def config_of(tree: Tree, files: Sequence[str]) -> Config:
    """Return the configuration of a set, from its YAML or from a file with a class on each line.

    Raises:
        UserError: There are several that differ, or it cannot be read.
    """
    configs = [file for file in files if file.lower().endswith(YAML)]
    if len(configs) > 1:
        raise UserError(
            f"{tree.shown!r} has several YAML files of a YOLO set ({', '.join(configs[:3])}): give one of them as DATA."
        )
    return _of_yaml(tree, configs[0]) if configs else Config(names=_listed_names(tree))


def roots_of_config(file: Path) -> list[Path]:
    """Return the folders that the images of a YAML file may lie below."""
    try:
        content = parse_yaml(read_decoded(file, MOST_CONFIG_BYTES).text)
    except (ValueError, UserError):
        content = None
    path = content.get("path") if isinstance(content, dict) else None
    told = [file.parent / path] if isinstance(path, str) and "\0" not in path else []
    return [root for root in (*told, file.parent, file.parent.parent) if root.is_dir()]


def _of_yaml(tree: Tree, file: str) -> Config:
    place = tree.place_of(file)
    try:
        content = parse_yaml(tree.text(file, MOST_CONFIG_BYTES).text)
    except ValueError as problem:
        raise UserError(f"{place!r} cannot be read ({problem}): give the YAML of a YOLO set.") from None
    if not isinstance(content, dict):
        raise UserError(f"{place!r} holds no names and folders: give the YAML of a YOLO set.")
    parts: dict[str, list[str]] = {}
    for key, value in content.items():
        part = PARTS.get(str(key).lower())
        if part and value:
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(one, str) for one in values):
                raise UserError(
                    f"{place!r} gives {key} as {repr(value)[:80]}, expected a folder or a list: correct it."
                )
            parts.setdefault(part, []).extend(values)
    base, here = content.get("path"), file.rpartition("/")[0]
    return Config(
        place,
        _names(content.get("names"), tree, place),
        parts,
        f"{here}/{base}" if isinstance(base, str) else here,
        bool(content.get("kpt_shape")),
    )


def _names(value: Any, tree: Tree, place: str) -> dict[int, str] | None:
    """Return the names of classes that YAML gives as a list, by their numbers, or as the path of a file."""
    if value is None:
        return None
    if isinstance(value, str):
        found = next((file for file in tree.files if folders_of(file)[-1:] == folders_of(value)[-1:]), None)
        if found is None:
            raise UserError(f"{place!r} gives {value!r} as its names, and there is no such file: add it.")
        return _checked(dict(enumerate(map(plain_name, lines_of(tree, found)[0]))), place)
    pairs = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    names: dict[int, str] = {}
    for number, name in pairs:
        if isinstance(name, bool) or not isinstance(name, str | int | float) or not str(number).isdecimal():
            raise UserError(
                f"{place!r} names the class {number!r} {name!r}, expected a number and a text: put the name in quotes."
            )
        names[int(number)] = plain_name(str(name))
    if not names:
        raise UserError(f"{place!r} has no names of classes, expected a list, or numbers with their names: add them.")
    return _checked(names, place)


def _checked(names: Mapping[int, str], place: str) -> dict[int, str]:
    if len(names) > MOST_CLASSES:
        raise UserError(f"{place!r} names {len(names):,} classes; at most {MOST_CLASSES:,} are read.")
    return without_repetition(names)


def _listed_names(tree: Tree) -> dict[int, str] | None:
    """Return the names of classes from a text file with one on each line."""
    found: dict[tuple[str, ...], str] = {}
    for file in tree.files:
        name = file.rpartition("/")[2].lower()
        if name in NAME_FILES or name.endswith(NAME_ENDINGS):
            found.setdefault(tuple(map(plain_name, lines_of(tree, file)[0])), file)
    if len(found) > 1:
        first, second = list(found.values())[:2]
        raise UserError(f"{first!r} and {second!r} in {tree.shown!r} name different classes: remove one of them.")
    return next((_checked(dict(enumerate(names)), tree.place_of(file)) for names, file in found.items()), None)


def images_by_part(config: Config, tree: Tree, names: Names) -> tuple[dict[str, str], list[str]]:
    """Return the part of each image that a configuration gives to one, and notes.

    Raises:
        UserError: The images of train are not there, or some images but not all of one part are those of another.
    """
    parts: dict[str, str] = {}
    notes: list[str] = []
    of_part: dict[str, set[str]] = {}
    for part in ("train", "val", "test"):
        keys: set[str] = set()
        for value in config.parts.get(part, ()):
            found = _images_of(value, config, tree, names, part)
            if found is None and part == "train":
                raise MissingImage(
                    f"{config.place!r} gives {value!r} as images of train, and there are none in {tree.shown!r}: "
                    "correct it."
                )
            if found is None:
                notes.append(f"{value!r}, the images of {part}, is not there and was passed over")
            keys |= found or set()
        same = next((other for other, known in of_part.items() if keys & known), None)
        if keys and same and of_part[same] == keys:
            notes.append(f"the images of {part} are those of {same}: they count as {same} alone")
            continue
        if same:
            both = sorted(keys & of_part[same])
            raise UserError(
                f"{config.place!r} has {counted(len(both), 'image')} in {same} and in {part}, such as {both[0]!r}: "
                "give each image one part."
            )
        of_part[part] = keys
        parts.update(dict.fromkeys(keys, part))
    return parts, notes


def _images_of(value: str, config: Config, tree: Tree, names: Names, part: str) -> set[str] | None:
    """Return the images below a folder or in a list; None where it is not there."""
    folders = {folded(folder): folder for image in tree.images for folder in map(str, PurePosixPath(image).parents)}
    files = {folded(file): file for file in tree.ending(".txt")}
    path = [*folders_of(value)]
    while path and "*" in path[-1]:
        path.pop()
    above = [*folders_of(config.base), *path]
    for place in range(len(above) + 1):
        if any(folder.lower() in PARTS for folder in above[:place]) and place > len(above) - len(path):
            break  # "train/images" is not "images"
        spelling = folded("/".join(above[place:]) or ".")
        if spelling in files:
            listed = names.located(lines_of(tree, files[spelling])[0], files[spelling], part)
            return {key for key in listed if key is not None} or None
        if spelling in folders and (above[place:] or not above):
            prefix = "" if folders[spelling] == "." else f"{folders[spelling]}/"
            return {image for image in tree.images if image.startswith(prefix)}
    return None
