"""The table of layouts of boxes, and which of them a folder, an archive or a file has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paucal.data.boxes import coco, cvat, labelme, table, voc, yolo
from paucal.data.boxes.described import Described
from paucal.data.boxes.layout import Layout
from paucal.data.boxes.naming import LABEL_FOLDERS
from paucal.data.boxes.tree import Tree, folder_tree, is_archive, open_tree
from paucal.data.boxes.unread import find_unread
from paucal.data.part_names import part_of_folders
from paucal.data.sources.archive import ARCHIVE_SUFFIXES
from paucal.data.sources.folder import IMAGE_FOLDERS
from paucal.types import UserError

# The order counts where a set has the same boxes in several layouts.
LAYOUTS: tuple[Layout, ...] = (voc.LAYOUT, coco.LAYOUT, cvat.LAYOUT, labelme.LAYOUT, yolo.LAYOUT, table.LAYOUT)
EXPECTED = "; ".join(layout.expected for layout in LAYOUTS)
SUFFIXES = tuple(dict.fromkeys(suffix for layout in LAYOUTS for suffix in layout.suffixes))
STRUCTURE = (*IMAGE_FOLDERS, *LABEL_FOLDERS, "imagesets")


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
    if unread := find_unread(tree):
        return BoxFiles(f"{unread[1]} writes them", [unread[0]])
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
