"""The table of layouts of boxes, and which of them a folder, an archive or a file has.

Others are known by their looks and not read, so that they can be called by their names.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from paucal.data.boxes import coco, cvat, labelme, table, voc, yolo
from paucal.data.boxes.described import Described, Layout
from paucal.data.boxes.naming import LABEL_FOLDERS
from paucal.data.boxes.tree import Tree, folder_tree, is_archive, open_tree, plain
from paucal.data.sources.archive import ARCHIVE_SUFFIXES
from paucal.data.sources.folder import IMAGE_FOLDERS
from paucal.data.splits.part_names import part_of_folders
from paucal.types import UserError

# The order counts where a set has the same boxes in several layouts.
LAYOUTS: tuple[Layout, ...] = (voc.LAYOUT, coco.LAYOUT, cvat.LAYOUT, labelme.LAYOUT, yolo.LAYOUT, table.LAYOUT)
EXPECTED = "; ".join(layout.expected for layout in LAYOUTS)
SUFFIXES = tuple(dict.fromkeys(suffix for layout in LAYOUTS for suffix in layout.suffixes))
STRUCTURE = (*IMAGE_FOLDERS, *LABEL_FOLDERS, "imagesets")

HEAD = 1 << 16  # bytes at the beginning and at the end that are looked at
LOOKED_AT = 20  # files of a kind
_NUMBER = rb"-?\d+(?:\.\d+)?(?:e-?\d+)?[ \t]*"
_KITTI = rb"\A\s*[A-Za-z]\w*[ \t]+(?:" + _NUMBER + rb"){14,15}(?:\r?\n|\Z)"
_DOTA = rb"(?:\A|\n)(?:" + _NUMBER + rb"){8}[A-Za-z][\w-]*[ \t]+[0-3][ \t\r]*(?:\n|\Z)"


class Unread(NamedTuple):
    """A layout that is not read.

    Attributes:
        name: Name of the program or set that writes it so.
        suffixes: Endings of its files.
        pattern: What is in its files.
    """

    name: str
    suffixes: tuple[str, ...]
    pattern: re.Pattern[bytes]


def _entries(*names: str) -> re.Pattern[bytes]:
    return re.compile("".join(f'(?=.*"{name}"\\s*:)' for name in names).encode(), re.DOTALL)


UNREAD: tuple[Unread, ...] = (
    Unread("the VGG Image Annotator (VIA)", (".json",), _entries("shape_attributes")),
    Unread("the VGG Image Annotator (VIA)", (".csv",), re.compile(rb"region_shape_attributes")),
    Unread("Label Studio", (".json",), re.compile(rb'"(?:rectanglelabels|polygonlabels|brushlabels)"\s*:')),
    Unread("Supervisely", (".json",), _entries("objects", "classTitle")),
    Unread("Create ML", (".json",), _entries("annotations", "coordinates", "label")),
    Unread("Datumaro", (".json",), _entries("items", "annotations", "bbox", "label_id")),
    Unread("BDD100K", (".json",), _entries("labels", "box2d")),
    Unread("SageMaker Ground Truth", (".manifest", ".jsonl"), re.compile(rb'"source-ref"\s*:')),
    Unread("TensorFlow's records", (".tfrecord", ".record", ".tfrecords"), re.compile(b"")),
    Unread("KITTI", (".txt",), re.compile(_KITTI)),
    Unread("DOTA", (".txt",), re.compile(_DOTA)),
    Unread("VisDrone", (".txt",), re.compile(rb"\A\s*(?:\d+,){7}\d+,?\s*(?:\r?\n|\Z)")),
)


@dataclass(frozen=True)
class BoxFiles:
    """The annotation files of a place that are of one layout.

    Attributes:
        name: Name of the layout.
        files: Paths of the files, at least one.
        read: Reads them; None for a layout that is not read.
        advice: What to do about a layout that is not read.
    """

    name: str
    files: Sequence[str]
    read: Callable[[Tree, Sequence[str]], Described] | None = None
    advice: str = "convert them to COCO's JSON"

    @property
    def shown(self) -> str:
        """Folder of the files, or the only file."""
        folders = {file.rpartition("/")[0] for file in self.files}
        is_many = self.name not in (coco.LAYOUT.name, cvat.LAYOUT.name, table.LAYOUT.name)
        return "".join(folders) if len(folders) == 1 and is_many and folders != {""} else self.files[0]

    @property
    def are_among_classes(self) -> bool:
        """Whether all files lie in folders that may as well be classes of images."""
        folders = [file.rpartition("/")[0] for file in self.files]
        known = [part_of_folders(f"{path}/") or {*path.lower().split("/")} & set(STRUCTURE) for path in folders]
        return all(folders) and not any(known)


def find_boxes(place: Path) -> BoxFiles | None:
    """Return the annotation files that a place seems to have; None where it seems to have none."""
    is_set = place.is_dir() or is_archive(place)
    if not place.exists() or not (is_set or place.suffix.lower() in SUFFIXES):
        return None
    tree = open_tree(place) if is_set else folder_tree(place.parent, [place.name])
    return next(iter(box_files(tree)), None) or unread_files(tree)


def box_files(tree: Tree) -> list[BoxFiles]:
    """Return the annotation files of each layout of the table that a tree has."""
    found = ((layout, layout.find(tree, tree.files)) for layout in LAYOUTS)
    return [BoxFiles(layout.name, files, layout.read) for layout, files in found if files]


def unread_files(tree: Tree) -> BoxFiles | None:
    """Return files of boxes that are not read: of other layouts, and in archives below a folder."""
    for one in UNREAD:
        for file in tree.ending(*one.suffixes)[:LOOKED_AT]:
            if one.pattern.search(plain(tree.peek(file, HEAD))):
                return BoxFiles(f"{one.name} writes them", [file])
    archives = [] if tree.images or not Path(tree.location).is_dir() else tree.ending(*ARCHIVE_SUFFIXES)
    if not archives:
        return None
    try:
        inside = find_boxes(Path(tree.location, archives[0]))
    except UserError:  # what is wrong with it those say who read it
        return None
    advice = "give one archive as DATA, or unpack them"
    return inside and BoxFiles(f"{inside.name} in archives", archives[:1], advice=advice)


def refuse_boxes(place: Path) -> None:
    """Refuse a place whose images have boxes, where classes of images are wanted.

    Raises:
        UserError: The place has boxes in a layout of the table, or in one that is known by name.
    """
    if found := find_boxes(place):
        shown = f" ({found.shown})" if place.is_dir() else ""
        raise UserError(
            f"{place} tells boxes{shown} as {found.name}, and no classes of images: `paucal detect` learns "
            "boxes; to classify, write a table of image_path,label with the classes that each image shows, such as "
            "'cat;dog'."
        )
