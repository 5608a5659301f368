"""Boxes from Pascal VOC's XML: one file for each image."""

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from paucal.data.sources.folder import IMAGE_SUFFIXES
from paucal.reading import read_bytes, read_text
from paucal.transfer.detection.annotations import MOST_CLASSES, Annotated
from paucal.types import UserError

MOST_BYTES = 1 << 23  # of one image: some 30,000 boxes
MOST_LIST_BYTES = 1 << 26
FOLDERS = ("JPEGImages", "images", "Images", ".")
PARTS = {"train": "train", "val": "val", "test": "test"}


def read_voc(root: Path, folder: Path, declared: str | None = None) -> tuple[list[Annotated], dict[str, int]]:
    """Read the XML files of a folder.

    The corners are taken as the edges of the box; programs that count pixels from 1 are then off by at most one.

    Args:
        root: folder that the keys of the images begin at.
        folder: that holds the XML files.
        declared: the part that all images belong to; None for what `ImageSets/Main` says.

    Returns:
        The images, and a number for each class in the order of the alphabet, from 1.

    Raises:
        UserError: a file is no annotation, declares entities, or belongs to no image.
    """
    parts = {} if declared is not None else _parts(root)
    images = _images_by_stem(root, folder)
    found = []
    for file in sorted(folder.glob("*.xml")):
        tree = parse_xml(file)
        key = _key_of(file, tree, images, root)
        one = Annotated(key, declared=declared if declared is not None else parts.get(file.stem, ""), source=file.name)
        one.size = _size(tree, file)
        for item in tree.findall("object"):
            name = (item.findtext("name") or "").strip()
            if not name:
                raise UserError(f"{str(file)!r} has an object without a name: correct it.")
            one.boxes.append(_corners(item, file))
            one.names.append(name)
            one.crowd.append(False)
        found.append(one)
    names = sorted({name for one in found for name in one.names})
    if len(names) > MOST_CLASSES:
        raise UserError(f"{str(folder)!r} names {len(names):,} classes; at most {MOST_CLASSES:,} are read.")
    return _whole_parts(found), {name: number for number, name in enumerate(names, 1)}


def parse_xml(file: Path) -> ElementTree.Element:
    """Parse a bounded XML file whose text means what it says: without entities, which could stand for gigabytes.

    Raises:
        UserError: it is too large, is no XML, or declares a document type.
    """
    builder, parser = ElementTree.TreeBuilder(), expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise UserError(f"{str(file)!r} declares a document type, which annotations have no need of: remove it.")

    def end(name: str) -> None:
        builder.end(name)

    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = lambda text: builder.data(text)
    try:
        parser.Parse(read_bytes(file, MOST_BYTES), True)
        return builder.close()
    except (expat.ExpatError, ValueError, AssertionError) as problem:
        raise UserError(f"{str(file)!r} is no XML ({problem}): give Pascal VOC's annotations.") from None


def _corners(item: ElementTree.Element, file: Path) -> tuple[float, float, float, float]:
    texts = [item.findtext(f"bndbox/{name}") for name in ("xmin", "ymin", "xmax", "ymax")]
    try:
        left, top, right, bottom = (float(text or "") for text in texts)
    except ValueError:
        raise UserError(
            f"{str(file)!r} has a box with the corners {texts}, expected numbers for xmin, ymin, xmax and ymax: "
            "correct it."
        ) from None
    return left, top, right, bottom


def _size(tree: ElementTree.Element, file: Path) -> tuple[int, int] | None:
    height, width = tree.findtext("size/height"), tree.findtext("size/width")
    if height is None or width is None:
        return None
    try:
        size = int(float(height)), int(float(width))
    except (ValueError, OverflowError):
        raise UserError(f"{str(file)!r} says its image is {width!r} by {height!r} pixels: correct it.") from None
    return size if min(size) > 0 else None  # some programs write 0 for "unknown"


def _images_by_stem(root: Path, folder: Path) -> Mapping[str, Path]:
    places = [folder, *(root / name for name in FOLDERS), *(folder.parent / name for name in FOLDERS)]
    found: dict[str, Path] = {}
    for place in dict.fromkeys(place.resolve() for place in places if place.is_dir()):
        for path in sorted(place.iterdir()) if place.is_relative_to(root.resolve()) else ():
            if path.suffix.lower() in IMAGE_SUFFIXES:
                found.setdefault(path.name, path)
                found.setdefault(path.stem, path)
    return found


def _key_of(file: Path, tree: ElementTree.Element, images: Mapping[str, Path], root: Path) -> str:
    """Return the key of the image of a file: the one called as the file is, else the one that it names."""
    told = (tree.findtext("filename") or "").replace("\\", "/").rpartition("/")[2]
    path = images.get(file.stem) or images.get(told)
    if path is None:
        raise UserError(
            f"{str(file)!r} describes {told or file.stem!r}, and there is no such image beside it or in "
            f"{', '.join(FOLDERS[:2])}: add it."
        )
    return path.relative_to(root.resolve()).as_posix()


def _parts(root: Path) -> dict[str, str]:
    """Return the part of each image, by the name of its file, from the lists in `ImageSets/Main`."""
    parts: dict[str, str] = {}
    for name, part in PARTS.items():
        file = root / "ImageSets" / "Main" / f"{name}.txt"
        if not file.is_file():
            continue
        for line in read_text(file, MOST_LIST_BYTES, errors="surrogateescape").splitlines():
            for stem in line.split()[:1]:
                if parts.setdefault(stem, part) != part:
                    raise UserError(
                        f"{str(file)!r} lists {stem!r}, which is in the list of {parts[stem]} too: correct it."
                    )
    return parts


def _whole_parts(found: list[Annotated]) -> list[Annotated]:
    """Leave out what no list names, where there are lists: it belongs to none of their parts."""
    if not any(one.declared for one in found):
        return found
    return [one for one in found if one.declared]
