"""One door to every source of images: the built-in digits, sets by name, folders, Parquet and list files."""

import difflib
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.named.locations import is_named
from paucal.data.named.table import NAMED
from paucal.data.sources.digits import open_digits
from paucal.data.sources.folder import IMAGE_SUFFIXES, open_folder
from paucal.data.sources.listing import LIST_SUFFIX, find_train_list, open_listing
from paucal.data.sources.parquet import find_parquet, open_parquet
from paucal.data.sources.stores import FileStore
from paucal.types import UserError

BUILT_IN = "digits"
PARQUET_SUFFIXES = (".parquet", ".pq")


def open_images(
    location: str | Path = BUILT_IN,
    *,
    labelled: bool = True,
    label_column: str | None = None,
    root: str | Path | None = None,
    download: bool = False,
) -> ImageSet:
    """Open images by location; the pixels are read later, one by one.

    Args:
        location: "digits" for the built-in data (`./digits` for a folder of that name); a folder of images; a
            Parquet file in the Hugging Face layout or a folder of such files; a list file (`listing.py`) or a folder
            with one; the name of a published set (`named.py`), where no file or folder is called so; one image file
            when not `labelled`.
        labelled: False takes the images alone, from any nesting of folders, for pre-training and prediction.
        label_column: the column of a Parquet file that holds the class; None finds it.
        root: folder of the sets with names (None for `named.data_root`), where the name then wins over a path; or the
            folder that the paths of a list file are relative to.
        download: whether a set with a name may be fetched.

    Raises:
        UserError: the location does not exist, holds no images, or is not laid out as described; a set with a name is
            not there, or cannot be fetched.

    Example:
        >>> images = open_images("digits")
        >>> len(images), len(images.classes), images.store.read(0).size
        (1797, 10, (8, 8))
    """
    if root is not None and not download and not is_named(location, root) and not Path(root).expanduser().is_dir():
        raise UserError(f"--data-root: there is no folder {str(root)!r}; correct it, or leave it out")
    if location == BUILT_IN:
        return open_digits(labelled)
    if is_named(location, root):
        # Loaded here, because torchvision takes seconds and most data does not need it.
        from paucal.data.named.store import open_named

        return open_named(str(location), root, download, labelled)
    path = Path(location).expanduser()
    if not path.exists():
        raise UserError(f"{path} does not exist{_near_names(path)}")
    base = None if root is None else Path(root).expanduser()
    images = (_open_file if path.is_file() else _open_directory)(path, labelled, label_column, base)
    if labelled and len(images.classes) < 2:
        only = "".join(images.classes)
        raise UserError(
            f"{path} has only one class ('{only}'); training a classifier needs at least two "
            f"class folders{_deeper(path)}"
        )
    return images


def _open_directory(path: Path, labelled: bool, label_column: str | None, root: Path | None) -> ImageSet:
    if files := find_parquet(path):
        return open_parquet(path, files, labelled, label_column)
    # Without labels a folder stands for all images below it, listed or not.
    if labelled and (train_list := find_train_list(path, root)):
        return open_listing(train_list, root=root)
    return open_folder(path, labelled)


def _open_file(path: Path, labelled: bool, label_column: str | None, root: Path | None) -> ImageSet:
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return open_parquet(path.parent, [path], labelled, label_column)
    if path.suffix.lower() == LIST_SUFFIX:
        return open_listing(path, labelled, root)
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        raise UserError(
            f"{path} is neither a folder, nor a Parquet file, nor an image, nor a list file; give one of these"
        )
    if labelled:
        raise UserError(f"{path} is a single image; give a folder with one folder per class")
    return ImageSet(
        name=path.name,
        location=str(path.resolve()),
        classes=(),
        keys=[path.name],
        labels=np.asarray([-1], dtype=np.int64),
        declared=[""],
        store=FileStore(path.resolve().parent, [path.name]),
    )


def _near_names(path: Path) -> str:
    """Suggest what the user may have meant, from the names beside the missing one and those of published sets."""
    if not path.parent.is_dir():
        return f", nor does its folder {path.parent}; check the spelling"
    names = [entry.name for entry in path.parent.iterdir()]
    names += [] if path.name != str(path) else [*NAMED, BUILT_IN]
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else "; check the spelling"


def _deeper(path: Path) -> str:
    """Point to the folder below, where the classes seem to be one level further down."""
    below = [entry for entry in path.iterdir() if entry.is_dir()] if path.is_dir() else []
    if len(below) == 1 and sum(entry.is_dir() for entry in below[0].iterdir()) > 1:
        return f"; did you mean {below[0]}?"
    return ""
