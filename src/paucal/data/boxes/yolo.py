"""Boxes and outlines from YOLO's text files: one for each image, in shares of its sides, with classes by number."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from paucal.data.boxes.claims import claimed
from paucal.data.boxes.described import Annotated, Described, Layout, box_of_points, some_of
from paucal.data.boxes.naming import MissingImage, Names, folded
from paucal.data.boxes.parts import lines_of
from paucal.data.boxes.tree import Tree, plain
from paucal.data.boxes.yolo_config import YAML, Config, config_of, images_by_part, is_config, roots_of_config
from paucal.data.splits.part_names import PARTS
from paucal.types import UserError
from paucal.wording import counted, was

TEXT = ".txt"
HEAD = 1 << 12  # bytes in which the first object of a label is
LOOKED_AT = 200  # labels among which one has an object, in a set that has objects
BOX, LEAST_OUTLINE = 5, 7  # numbers of a line: the class with a box, or with three points at least
OUTSIDE = 0.01  # of a side, which a number may lie beyond: it is cut at the edge


def find(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the YAML of a set, or where there is none its labels."""
    configs = [file for file in files if is_config(tree, file)]
    if configs:
        return configs
    labels = _labels(tree, files)
    return labels if any(_is_label(tree, file) for file in labels[:LOOKED_AT]) else []


def read(tree: Tree, files: Sequence[str]) -> Described:
    """Read the labels of a set; an empty one is of an image without objects.

    Raises:
        UserError: A label cannot be read, has a class without a name or numbers beyond the image, or the configuration
            does not fit the files.
    """
    config = config_of(tree, files)
    parts, notes = images_by_part(config, tree, Names(tree.images, tree)) if config.parts else ({}, [])
    labels = _labels(tree, tree.files if config.place else files)
    keys, more = claimed(tree, {file: () for file in labels})
    notes += more
    notes += _without_image(tree, keys)
    if not keys:
        raise MissingImage(f"{tree.shown!r} has no label beside its images or in labels/: add them.")
    store = tree.store(list(keys.values()))
    found: list[Annotated] = []
    encodings: list[str] = []
    for place, (file, key) in enumerate(keys.items()):
        one = Annotated(key, declared=parts.get(key, ""), source=file)
        lines, note = lines_of(tree, file, blank=True)
        encodings += [note] if note else []
        for number, line in enumerate(lines, 1):
            if line:
                _add(one, line, f"line {number} of {tree.place_of(file)!r}", store.size(place), config)
        found.append(one)
    notes += some_of(encodings)
    if config.names is not None:
        return Described(found, {name: number for number, name in config.names.items()}, tuple(notes))
    notes.append("there is no data.yaml and no classes.txt, so the classes are called by their numbers")
    names = sorted({name for one in found for name in one.names}, key=int)
    return Described(found, {name: int(name) for name in names}, tuple(notes))


LAYOUT = Layout(
    name="YOLO's text files",
    expected="YOLO's labels/*.txt beside images/, with data.yaml or classes.txt",
    suffixes=YAML,
    find=find,
    read=read,
    roots=roots_of_config,
)


def _labels(tree: Tree, files: Sequence[str]) -> list[str]:
    """Return the text files that are called like an image, but for lists of parts."""
    texts = [file for file in files if file.lower().endswith(TEXT)]
    stems = {folded(PurePosixPath(image).stem) for image in tree.images} if texts else set()
    labels = [file for file in texts if folded(PurePosixPath(file).stem) in stems]
    lists = {file for file in labels if PurePosixPath(file).stem.lower() in PARTS}
    return [file for file in labels if file not in lists or "labels" in file.lower().split("/")[:-1]]


def _without_image(tree: Tree, keys: Mapping[str, str]) -> list[str]:
    """Return a note on text files without an image that have objects, or none: labels of images that are missing."""
    others = [file for file in tree.ending(TEXT) if file not in keys and PurePosixPath(file).stem.lower() not in PARTS]
    alone = [file for file in others if _is_label(tree, file) or not plain(tree.peek(file, HEAD)).strip()]
    told = f"{counted(len(alone), 'label')} without an image {was(len(alone))} left out, such as "
    return [told + alone[0]] if alone else []


def _is_label(tree: Tree, file: str) -> bool:
    head = plain(tree.peek(file, HEAD)).strip()
    return bool(head) and _is_object(head.splitlines()[0])


def _is_object(line: bytes) -> bool:
    try:
        numbers = [float(word) for word in line.split()]
    except ValueError:
        return False
    return len(numbers) >= BOX and numbers[0] >= 0 and numbers[0] == int(numbers[0])


def _add(one: Annotated, line: str, where: str, size: tuple[int, int], config: Config) -> None:
    """Add the object of a line.

    Args:
        one: Image.
        line: Text of the line.
        where: Beginning of messages.
        size: (height, width) of the image in pixels.
        config: Names of the classes.
    """
    label, values = _numbers_of(line, where, config)
    if min(values) < -OUTSIDE or max(values) > 1 + OUTSIDE:
        raise UserError(
            f"{where} is {line[:80]!r}, with a number outside of 0 to 1: give shares of the width and height of the "
            "image."
        )
    height, width = size
    if len(values) == BOX - 1:
        x, y, across, down = values
        box = ((x - across / 2) * width, (y - down / 2) * height, (x + across / 2) * width, (y + down / 2) * height)
        one.add(box, label)
        return
    points = [(x * width, y * height) for x, y in zip(values[::2], values[1::2], strict=True)]
    one.add(box_of_points(points), label, outline=[[value for point in points for value in point]])


def _numbers_of(line: str, where: str, config: Config) -> tuple[str, list[float]]:
    """Return the name of the class of a line, and its numbers: a box, or the points of an outline."""
    try:
        number, *values = [float(word) for word in line.split()]
        label = int(number)
    except (ValueError, OverflowError):
        number, label, values = 0.5, 0, []
    values = values[: BOX - 1] if config.has_points else values
    count = len(values) + 1
    if label != number or label < 0 or not (count == BOX or (count >= LEAST_OUTLINE and count % 2)):
        raise UserError(
            f"{where} is {line[:80]!r}, expected the number of a class, and four numbers (centre x and y, width, "
            "height) or the x and y of three or more points: correct it."
        )
    if config.names is None:
        return str(label), values
    if label not in config.names:
        raise UserError(
            f"{where} has the class {label}, and {config.place or 'the file of classes'} names {len(config.names)} "
            f"(0 to {max(config.names)}): add its name, or correct the line."
        )
    return config.names[label], values
