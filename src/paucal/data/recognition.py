"""The kinds of labels of images (classes, boxes, masks): how each is recognised, and which verb learns it."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from paucal.data.boxes.opening import LAYOUTS, STRUCTURE, find_boxes, open_tagged_images
from paucal.data.boxes.tree import Tree, open_tree
from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, evenly_spaced
from paucal.data.masks.mask_files import pack_colours
from paucal.data.masks.recognition import masks_among
from paucal.data.sources.archive import is_archive, open_archive
from paucal.data.sources.folder import open_folder
from paucal.data.sources.source import SourceOptions
from paucal.data.sources.table_columns import find_tables
from paucal.data.splits.part_names import PARTS, tells_part
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted

FOLDERS_SHOWN, CLASSES_SHOWN = 5, 3
LOOKED_AT = 5  # pairs of files whose colours are counted
MASK_COLOURS, PHOTO_COLOURS = 32, 256  # most colours of a mask, and least of a photograph, in folders named by no rule


@dataclass(frozen=True)
class Kind:
    """A kind of labels.

    Attributes:
        verb: Verb that learns them.
        noun: Name of the labels.
        reads: Description of the files that the verb reads.
        see: Function that describes the labels of this kind in a folder, an archive or a file; "" if there are none.
        advice: What to do with a place that has labels of other kinds alone; "" for nothing.
    """

    verb: str
    noun: str
    reads: str
    see: Callable[[Path], str]
    advice: str = ""


def recognise(place: Path) -> dict[str, str]:
    """Return a description of the labels in a place for each verb that could learn them."""
    return {kind.verb: seen for kind in KINDS if (seen := _seen(kind, place))}


def refuse_other_kinds(place: Path, verb: str) -> None:
    """Refuse a place that has labels for other verbs.

    Raises:
        UserError: The place has labels of another kind; the message says which, and which verb learns them.
    """
    seen = {kind.verb: words for kind in KINDS if kind.verb != verb and (words := _seen(kind, place))}
    if seen:
        raise _refusal(str(place), seen, verb)


@contextmanager
def other_kinds_named(place: Path, verb: str) -> Iterator[None]:
    """Within this context, an error about missing labels names the verb that learns the labels that are there."""
    try:
        yield
    except NoLabelsError:
        refuse_other_kinds(place, verb)
        raise


def refuse_masks(images: ImageSet) -> None:
    """Refuse images with masks where images with classes are expected."""
    if masks := masks_among(images.keys, images.store):
        raise _refusal(images.location, {"segment": masks.describe()}, "train")
    if (folders := _twin_folders(images)) is not None:
        photos, masks_folder = folders
        raise UserError(
            f"the class folders {photos!r} and {masks_folder!r} of {images.location} have files of the same names, and "
            f"those of {masks_folder!r} have few colours, as masks have: `paucal segment --images "
            f"{Path(images.location, photos)} --masks {Path(images.location, masks_folder)}` learns masks; rename the "
            "files if the folders are classes."
        )


def refuse_structure(place: Path, names: tuple[str, ...]) -> None:
    """Refuse folders such as `images` and `labels` as classes, and say what is in them and what each verb would read.

    Raises:
        UserError: All names are those of folders that sets have whatever their classes.
    """
    are_folders = bool(names) and all((place / name).is_dir() for name in names)
    if not are_folders or not {name.lower() for name in names} <= set(STRUCTURE):
        return
    reads = "; ".join(f"`paucal {kind.verb}` reads {kind.reads}" for kind in KINDS)
    raise UserError(
        f"{place} has {_contents(open_tree(place), names)}, which are no classes, and nothing in it is recognised as "
        f"boxes or masks: {reads}."
    )


def _refusal(place: str, seen: dict[str, str], verb: str) -> UserError:
    own = next(kind for kind in KINDS if kind.verb == verb)
    verbs = ", ".join(f"`paucal {kind.verb}` learns {kind.noun}" for kind in KINDS if kind.verb in seen)
    advice = f"; {own.advice}" if own.advice else ""
    return UserError(f"{place} has {' and '.join(seen.values())}, and no {own.noun}: {verbs}{advice}.")


def _seen(kind: Kind, place: Path) -> str:
    try:
        return kind.see(place)
    except UserError:  # it is damaged, or may be several things; opening it reports that
        return ""


def _see_boxes(place: Path) -> str:
    found = None if open_tagged_images(place) is not None else find_boxes(place)
    shown = f" ({found.shown})" if found and place.is_dir() else ""
    return f"boxes{shown} as {found.name}" if found else ""


def _see_masks(place: Path) -> str:
    if not place.is_dir() and not is_archive(place):
        return ""
    tree = open_tree(place)
    masks = masks_among(tree.images, tree.store(list(tree.images)))
    return masks.describe() if masks else ""


def _see_classes(place: Path) -> str:
    found = find_boxes(place)  # a table of boxes has columns of images and classes too
    boxes = set(found.files) if found else set()
    tables = find_tables(place, SourceOptions()) if place.is_dir() else {}
    if tables and not {table.relative_to(place).as_posix() for table in tables.values()} & boxes:
        return f"a table of classes ({next(iter(tables.values())).name})"
    if (images := open_tagged_images(place)) is not None:
        return f"labels of whole images ({images.notes[0]})"
    names = (open_archive(place) if is_archive(place) else open_folder(place)).classes
    are_parts = all(any(tells_part(name, part) for part in set(PARTS.values())) for name in names)
    if len(names) < 2 or are_parts or {name.lower() for name in names} & set(STRUCTURE):
        return ""
    return f"class folders ({', '.join(names[:CLASSES_SHOWN])}{', ...' if len(names) > CLASSES_SHOWN else ''})"


KINDS = (
    Kind(
        "train",
        "classes of images",
        "class folders, or a table of image_path,label",
        _see_classes,
        "to classify, write a table of image_path,label with the classes that each image shows, such as 'cat;dog', or "
        "rename folders that are classes nevertheless",
    ),
    Kind("detect", "boxes", f"boxes as {', '.join(layout.name for layout in LAYOUTS)}", _see_boxes),
    Kind(
        "segment",
        "masks",
        "masks with the names of their images, in a folder such as masks/ or in any two folders with --images and "
        "--masks",
        _see_masks,
    ),
)


def _contents(tree: Tree, names: tuple[str, ...]) -> str:
    """Describe the content of the folders of a set, such as "images/ (8 .jpg)"."""
    described = []
    for name in names[:FOLDERS_SHOWN]:
        files = [PurePosixPath(file).suffix.lower() for file in tree.files if file.startswith(f"{name}/")]
        kinds = ", ".join(f"{count} {suffix or 'files'}" for suffix, count in Counter(files).most_common(2))
        described.append(f"{name}/ ({kinds or 'empty'})")
    others = [file for file in tree.files if "/" not in file]
    return ", ".join(described) + (f" and {counted(len(others), 'file')} beside them" if others else "")


def _twin_folders(images: ImageSet) -> tuple[str, str] | None:
    """Return two class folders that are photographs and their masks by their colours and sizes; None for others."""
    if len(images.classes) != 2:
        return None
    places: list[dict[str, int]] = [{}, {}]
    for place, (key, label) in enumerate(zip(images.keys, images.labels.tolist(), strict=True)):
        if label < 0 or not key.startswith(f"{images.classes[label]}/"):
            return None
        places[label][str(PurePosixPath(key.partition("/")[2]).with_suffix(""))] = place
    if places[0].keys() != places[1].keys() or sum(map(len, places)) != len(images):
        return None
    names = sorted(places[0])
    chosen = [names[int(place)] for place in evenly_spaced(len(names), LOOKED_AT)]
    try:
        pictures = [[np.asarray(images.store.read(side[name])) for name in chosen] for side in places]
    except UnreadableImage:
        return None
    if any(first.shape[:2] != second.shape[:2] for first, second in zip(*pictures, strict=True)):
        return None
    colours = [[len(np.unique(pack_colours(picture))) for picture in side] for side in pictures]
    for photos, masks in ((0, 1), (1, 0)):
        if min(colours[photos]) > PHOTO_COLOURS and max(colours[masks]) <= MASK_COLOURS:
            return images.classes[photos], images.classes[masks]
    return None
