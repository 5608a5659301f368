"""Names of classes that a set of masks brings itself, in a table of its colours or values."""

from collections.abc import Sequence
from pathlib import Path

from paucal.data.masks.coding import MaskCoding, NamedClasses, find_coding, read_class_names
from paucal.data.masks.mask_files import MaskFacts
from paucal.data.masks.naming import folder_role
from paucal.data.masks.pairs import Pairs
from paucal.data.splits.part_names import PARTS
from paucal.reading import is_regular
from paucal.types import UserError

# The first three are of SegNet and CamVid, of CVAT and Datumaro, and of Roboflow.
TABLES = (
    *("class_dict.csv", "labelmap.txt", "_classes.csv", "label_colors.txt", "label_colours.txt", "class_dict_seg.csv"),
    *("classes.csv", "colormap.csv", "labels.csv", "classes.txt", "labels.txt"),
)
MOST_ABOVE = 5  # folders above a file that are searched


def find_names(
    facts: MaskFacts, pairs: Pairs, ignore: Sequence[int] | None = None, coding: MaskCoding | None = None
) -> tuple[NamedClasses | None, list[str]]:
    """Return the classes in the first table of a set that fits its masks, and notes; None without such a table.

    Args:
        facts: Facts of all mask files.
        pairs: Images and masks.
        ignore: Value that means "not labelled", as set by the user.
        coding: Meaning of the values in a resumed run; None to choose it.
    """
    notes: list[str] = []
    for file in _tables(pairs):
        try:
            named = read_class_names(file)
            if _fits(named, facts, ignore, coding):
                return named, [*notes, f"the names of the classes are those in {file.name}"]
        except UserError:  # a file of this name may hold anything
            pass
        notes.append(f"{file.name} does not name the classes of these masks, and is not used")
    return None, notes


def _tables(pairs: Pairs) -> list[Path]:
    """Return the tables in the folders of the first image and the first mask, and in those above them."""
    if not pairs.pairs:
        return []
    first = pairs.pairs[0]
    files = [pairs.root / first.key, first.masks[0]]
    folders = [folder for file in files for folder in _folders_above(file, pairs.root)]
    children = {folder: {child.name.lower(): child for child in folder.iterdir()} for folder in dict.fromkeys(folders)}
    tables = [below[name] for below in children.values() for name in TABLES if name in below]
    return [table for table in tables if is_regular(table)]


def _folders_above(file: Path, root: Path) -> list[Path]:
    """Return the folders above a file up to the root, or up to the folder above one named after images or masks."""
    folders = []
    for folder in list(file.parents)[:MOST_ABOVE]:
        folders.append(folder)
        is_named = folder_role(folder.name).side or folder.name.lower() in PARTS
        is_inside = folder != root and (folder == file.parent or folder.is_relative_to(root))
        if not (is_named or is_inside):
            break
    return folders


def _fits(named: NamedClasses, facts: MaskFacts, ignore: Sequence[int] | None, coding: MaskCoding | None) -> bool:
    """Return whether a table names every value in the masks, or has a name for each class in their order.

    Raises:
        UserError: It does not fit.
    """
    chosen = coding or find_coding(facts, None, ignore, None if named.values is None else named)
    if named.values is None:
        return len(named.names) == chosen.count
    facts = facts.as_colours() if chosen.kind == "colour" else facts
    return chosen.values == named.values and set(facts.values) <= {*chosen.values, chosen.ignore}
