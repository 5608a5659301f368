"""Find out in which format a folder holds boxes, and read them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paucal.data.sources.folder import IMAGE_SUFFIXES
from paucal.transfer.detection.annotations import Annotated, BoxedImages, boxed_images
from paucal.transfer.detection.coco import read_coco
from paucal.transfer.detection.voc import read_voc
from paucal.types import UserError
from paucal.wording import counted

PART_FOLDERS = {
    **{"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"},
    **{"test": "test", "testing": "test"},
}
EXPECTED = (
    "COCO's JSON beside the images (in train/, valid/ and test/ where there are parts), annotations/*.json above them, "
    "or Pascal VOC's Annotations/ and JPEGImages/"
)
Found = tuple[list[Annotated], dict[str, int]]
SNIFFED = 1 << 22  # bytes of a JSON file, at its beginning and at its end, that are looked through for its entries


def open_boxed(location: str | Path, outlines: bool = True) -> BoxedImages:
    """Open images with boxes.

    Args:
        location: a folder, or COCO's JSON of one.
        outlines: whether to read the outlines of objects where there are some.

    Raises:
        UserError: there is nothing of that name, no annotations are found, or they do not do; see the readers.
    """
    path = Path(location).expanduser()
    if not path.exists():
        raise UserError(f"there is no file or folder {str(location)!r}: give a folder of images with boxes.")
    if path.is_file():
        if path.suffix.lower() != ".json":
            raise UserError(f"{str(location)!r} is no folder and no JSON of boxes: expected {EXPECTED}.")
        root = _root_of(path)
        found, numbers = read_coco(path, root)
        return boxed_images(root, _plain(found, outlines), numbers)
    parts = _parts_of(path)
    if not parts:
        raise UserError(f"{str(location)!r} has no annotations of boxes: expected {EXPECTED}.")
    found = [one for part, _ in parts for one in part]
    numbers = _joined([numbers for _, numbers in parts], path)
    return boxed_images(path, _plain(found, outlines), numbers, _unannotated(path, found))


def _plain(found: list[Annotated], outlines: bool) -> list[Annotated]:
    return found if outlines else [replace(one, outlines=[]) for one in found]


def _parts_of(root: Path) -> list[Found]:
    """Return what is found in each place that may hold annotations; the first kind of place that has some decides."""
    if (root / "Annotations").is_dir():
        return [read_voc(root, root / "Annotations")]
    folders = [(child, PART_FOLDERS[child.name.lower()]) for child in _children(root)]
    found = [one for folder, part in folders for one in _in_folder(root, folder, part)]
    if found:
        return found
    files = sorted((root / "annotations").glob("*.json")) if (root / "annotations").is_dir() else []
    if files:
        return [read_coco(file, root, _part_of(file)) for file in files]
    return _in_folder(root, root, None)


def _children(root: Path) -> list[Path]:
    return [child for child in sorted(root.iterdir()) if child.is_dir() and child.name.lower() in PART_FOLDERS]


def _in_folder(root: Path, folder: Path, part: str | None) -> list[Found]:
    files = sorted(folder.glob("*.json"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:3])
        raise UserError(f"{str(folder)!r} has several JSON files ({names}): give the one with the boxes as DATA.")
    if files:
        return [read_coco(files[0], root, part or "")]
    for place in (folder, folder / "Annotations"):
        if any(place.glob("*.xml")):
            return [read_voc(root, place, part)]
    return []


def _part_of(file: Path) -> str:
    name = file.stem.lower()
    return next((part for word, part in PART_FOLDERS.items() if word in name), "")


def _root_of(file: Path) -> Path:
    """Return the folder above both a file of annotations and its images: its own, or the one above `annotations`."""
    beside = any(path.suffix.lower() in IMAGE_SUFFIXES for path in file.parent.iterdir())
    return file.parent if beside or (file.parent / "images").is_dir() else file.parent.parent


def _joined(numbers: Sequence[dict[str, int]], root: Path) -> dict[str, int]:
    """Return one number for each class of several files, which VOC's files do not have of themselves."""
    joined: dict[str, int] = {}
    for one in numbers:
        for name, number in one.items():
            joined.setdefault(name, number)
    if len(set(joined.values())) == len(joined):
        return joined
    if all(sorted(one.values()) == list(range(1, len(one) + 1)) for one in numbers):
        return {name: number for number, name in enumerate(sorted(joined), 1)}
    raise UserError(
        f"the files of {str(root)!r} give one number to several classes: give each class one number in all."
    )


def _unannotated(root: Path, found: Sequence[Annotated]) -> list[str]:
    """Say how many images beside those with annotations have none: they are not taken for images without objects."""
    folders, known = {(root / one.key).parent for one in found}, {one.key for one in found}
    there = [p for f in folders if f.is_dir() for p in f.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES]
    left = sum(path.relative_to(root).as_posix() not in known for path in there)
    told = f"{counted(left, 'image')} that no annotation describes {'is' if left == 1 else 'are'} left out"
    return [told] if left else []


def holds_boxes(location: Path) -> bool:
    """Return whether a place looks as if it held boxes: VOC's XML, or JSON that names images and annotations.

    Nothing is parsed, so that other data with a stray JSON file is not taken for boxes.
    """
    if location.is_file():
        return location.suffix.lower() == ".json" and _names_annotations(location)
    if not location.is_dir():
        return False
    places = [location, location / "annotations", location / "Annotations"]
    for folder in _children(location):
        places += [folder, folder / "Annotations"]
    some = [place for place in places if place.is_dir()]
    return any(any(place.glob("*.xml")) or any(map(_names_annotations, place.glob("*.json"))) for place in some)


def described(location: Path) -> tuple[Path, list[Annotated]]:
    """Return the folder that keys begin at and the images as their files describe them, with nothing of it checked.

    Raises:
        UserError: a file cannot be read, or is no annotation.
    """
    if location.is_file():
        root = _root_of(location)
        return root, read_coco(location, root)[0]
    return location, [one for part, _ in _parts_of(location) for one in part]


def _names_annotations(file: Path) -> bool:
    if not file.is_file():
        return False
    try:
        with file.open("rb") as content:
            start, last = content.read(SNIFFED), b""
            content.seek(0, 2)
            if content.tell() > SNIFFED:
                content.seek(-SNIFFED, 2)
                last = content.read(SNIFFED)
    except OSError:
        return False
    return all(name in start or name in last for name in (b'"images"', b'"annotations"'))
