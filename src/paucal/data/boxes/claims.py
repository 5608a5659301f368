"""Which image each annotation file describes, where every image has a file of its own."""

from collections.abc import Mapping, Sequence

from paucal.data.boxes.described import Annotated, add_once
from paucal.data.boxes.naming import MissingImage, Names, folded, folders_of
from paucal.data.boxes.tree import Tree
from paucal.data.sources.folder import IMAGE_SUFFIXES
from paucal.wording import counted


def claimed(tree: Tree, named: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], list[str]]:
    """Return the image that each annotation file describes, and notes on names that were not believed.

    A file describes the image that it names. Where several name one image, as in sets whose files were renamed, each
    describes the image of its own stem that no other claims.

    Args:
        tree: Files of the set.
        named: Names that each annotation file gives its image, the likeliest first.

    Raises:
        UserError: Several files describe one image, or a file may describe several.
    """
    names = Names(tree.images, tree)
    keys = {file: key for file, words in named.items() if (key := names.beside(file, words)) is not None}
    moved = []
    for file in _contested(keys):
        own = names.beside(file, ())
        if own is not None and own not in keys.values():
            keys[file] = own
            moved.append(file)
    images: dict[str, Annotated] = {}
    for file, key in keys.items():
        add_once(images, Annotated(key, source=file), tree.shown)
    others = [file for file, key in keys.items() if file not in moved and _is_other_ending(named[file], key)]
    notes = []
    if moved:
        told = counted(len(moved), "annotation file names", "annotation files name")
        notes.append(f"{told} the image of another file, such as {moved[0]}: the image of its own name was taken")
    if others:
        told = counted(len(others), "annotation file names", "annotation files name")
        notes.append(
            f"{told} an image of an ending that is not there, such as {others[0]}: {keys[others[0]]} was taken"
        )
    return keys, notes


def _is_other_ending(named: Sequence[str], key: str) -> bool:
    """Return whether all names with an image suffix name other files than this image."""
    lasts = [folders_of(name)[-1] for name in named if folders_of(name)]
    known = [folded(name) for name in lasts if name.lower().endswith(IMAGE_SUFFIXES)]
    return bool(known) and folded(key.rpartition("/")[2]) not in known


def require_images(tree: Tree, named: Mapping[str, Sequence[str]], keys: Mapping[str, str]) -> None:
    """Refuse annotation files whose image is not there.

    Raises:
        MissingImage: There is such a file.
    """
    for file, words in named.items():
        if file not in keys:
            name = next((folders_of(word)[-1] for word in words if folders_of(word)), file.rpartition("/")[2])
            raise MissingImage(
                f"{tree.place_of(file)!r} describes {name!r}, and there is no such image beside it or in a folder such "
                "as JPEGImages or images: add it."
            )


def _contested(keys: Mapping[str, str]) -> list[str]:
    """Return the files that describe one image with another."""
    files: dict[str, list[str]] = {}
    for file, key in keys.items():
        files.setdefault(key, []).append(file)
    return [file for several in files.values() if len(several) > 1 for file in several]
