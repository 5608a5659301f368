"""One door to every source of images: the built-in digits, sets by name, folders, archives, tables and Parquet."""

import difflib
from dataclasses import replace
from pathlib import Path

import numpy as np

from paucal.data.boxes.layouts import STRUCTURE, find_boxes, refuse_boxes
from paucal.data.boxes.opening import images_of
from paucal.data.class_names import with_plain_classes
from paucal.data.images import ImageSet
from paucal.data.masks.recognition import refuse_masks, without_masks
from paucal.data.named.locations import is_named
from paucal.data.named.table import NAMED
from paucal.data.part_names import PARTS, tells_part
from paucal.data.shards.opening import find_shards, is_shard, open_shards
from paucal.data.shards.place import LocalPlace, RemotePlace, is_remote
from paucal.data.sources.archive import ARCHIVE_SUFFIXES, COMPRESSED, open_archive
from paucal.data.sources.digits import open_digits
from paucal.data.sources.folder import IMAGE_SUFFIXES, open_folder
from paucal.data.sources.hub import hub_files, is_on_hub
from paucal.data.sources.listing import LIST_SUFFIX, find_train_list, open_listing
from paucal.data.sources.options import SourceOptions
from paucal.data.sources.parquet import (
    find_parquet,
    find_remote_parquet,
    open_parquet,
    open_remote_parquet,
)
from paucal.data.sources.row_files import PARQUET_SUFFIX, RowFile
from paucal.data.sources.several import joined_sets, roots_of
from paucal.data.sources.stores import FileStore
from paucal.data.sources.table import open_tables
from paucal.data.sources.table_files import find_tables, together
from paucal.data.sources.table_rows import TABLE_SUFFIXES
from paucal.data.sources.voc_lists import is_voc, open_voc
from paucal.data.verify import ReportProgress
from paucal.types import NoLabelsError, UserError

BUILT_IN = "digits"
PARQUET_SUFFIXES = (".parquet", ".pq", ".arrow")


def open_images(
    location: str | Path = BUILT_IN,
    *,
    labelled: bool = True,
    label_column: str | None = None,
    image_column: str | None = None,
    root: str | Path | None = None,
    download: bool = False,
    label_separator: str | None = None,
    progress: ReportProgress | None = None,
) -> ImageSet:
    """Open images by location; the pixels are read later, one by one.

    Args:
        location: "digits" for the built-in data (`./digits` for a folder of that name); a folder of images, or a zip or
            tar of one; a Parquet file in the Hugging Face layout or a folder of such files; a folder of tar shards in
            WebDataset's layout (`shards/`), or its URL; a table (`table.py`) or a list file (`listing.py`), or a folder
            with one; PASCAL VOC's lists; "hf:OWNER/NAME" on the Hugging Face hub; the name of a published set
            (`named.py`), where no file or folder is called so; one image file when not `labelled`; or several of
            these, joined by ":" (";" on Windows).
        labelled: False takes the images alone, from any nesting of folders, for pre-training and prediction.
        label_column: the column of a table or Parquet file that holds the class; None finds it.
        image_column: the column that holds the path or the image; None finds it.
        root: folder of the sets with names (None for `named.data_root`), where the name then wins over a path; or the
            folder that the paths of a table or list file are relative to.
        download: whether a set with a name may be fetched.
        label_separator: what stands between several labels in a cell of a table, "none" for one label in each; None
            finds out.
        progress: called with (shards, shards in all) where shards without an index are looked through.

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
    base = None if root is None else Path(root).expanduser()
    options = SourceOptions(labelled, label_column, image_column, base, label_separator, progress)
    found = [_open_one(piece, options, download) for piece in roots_of(location)]
    images = found[0] if len(found) == 1 else joined_sets(found, str(location))
    if not labelled:
        return without_masks(images)
    if len(images.classes) < 2 or {name.lower() for name in images.classes} & set(STRUCTURE):
        refuse_boxes(Path(location).expanduser())
    if images.stream is None:
        refuse_masks(images)
    images = with_plain_classes(images)
    _require_classes(images, location)
    return images


def _require_classes(images: ImageSet, location: str | Path) -> None:
    if len(images.classes) < 2:
        path, only = Path(images.location if is_remote(location) else location).expanduser(), "".join(images.classes)
        raise UserError(
            f"{path} has only one class ('{only}'); training a classifier needs at least two "
            f"class folders{_deeper(path)}"
        )


def _open_one(location: str | Path, options: SourceOptions, download: bool) -> ImageSet:
    if is_on_hub(location):
        folder, files = hub_files(str(location), download)
        found = open_parquet(folder, files, options)
        return replace(found, name=str(location).rsplit("/", 1)[-1], location=str(location))
    if is_remote(location):
        return _open_remote(str(location), options)
    path = Path(location).expanduser()
    if not path.exists():
        raise UserError(f"{path} does not exist{_near_names(path)}")
    if options.image_column is not None and path.is_dir() and not find_parquet(path):
        return open_tables(_require_tables(path, options), options)
    try:
        return (_open_file if path.is_file() else _open_directory)(path, options)
    except UserError:
        if options.labelled:
            refuse_boxes(path)
        elif path.is_file() and find_boxes(path):
            return images_of(path)
        raise


def _open_remote(location: str, options: SourceOptions) -> ImageSet:
    folder, _, file = location.rstrip("/").rpartition("/")
    if file.endswith(PARQUET_SUFFIX):  # one file alone, which storage that lists nothing has too
        place = RemotePlace(folder)
        return open_remote_parquet([RowFile(place, place.known(file))], options)
    place = RemotePlace(location)
    if files := find_remote_parquet(place):
        return open_remote_parquet(files, options)
    return open_shards(place, options)


def _open_directory(path: Path, options: SourceOptions) -> ImageSet:
    if files := find_parquet(path):
        return open_parquet(path, files, options)
    if is_voc(path):
        return open_voc(path, options.labelled)
    if find_shards(path):
        return open_shards(LocalPlace(path), options)
    if not options.labelled:  # a folder stands for all images below it then, listed or not
        return open_folder(path, labelled=False)
    if train_list := find_train_list(path, options.root):
        return open_listing(train_list, root=options.root)
    if options.label_column is not None or options.separator is not None:
        return open_tables(_require_tables(path, options), options)
    try:
        images = open_folder(path)
    except UserError:  # no class folders: a table may tell the classes
        tables = find_tables(path, options)
        if not tables:
            refuse_masks(open_folder(path, labelled=False))
            raise
        return open_tables(tables, options)
    # Folders of parts that hold no classes look like classes themselves.
    in_doubt = len(images.classes) < 2 or all(
        any(tells_part(name, part) for part in set(PARTS.values())) for name in images.classes
    )
    tables = find_tables(path, options) if in_doubt else {}
    return open_tables(tables, options) if tables else images


def _require_tables(path: Path, options: SourceOptions) -> dict[str, Path]:
    all_tables = sorted(file for file in path.iterdir() if file.suffix.lower() in TABLE_SUFFIXES)
    tables = together(all_tables[0], options) if len(all_tables) == 1 else find_tables(path, options)
    if not tables:
        raise UserError(
            f"--image-column, --label-column and --label-separator are about tables, and {path} has none: give a CSV "
            "file"
        )
    return tables


def _open_file(path: Path, options: SourceOptions) -> ImageSet:
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return open_parquet(path.parent, [path], options)
    if path.suffix.lower() == LIST_SUFFIX:
        return open_listing(path, options.labelled, options.root)
    if path.suffix.lower() in TABLE_SUFFIXES:
        return open_tables(together(path, options), options)
    if path.suffix.lower() == ".tar" and is_shard(path):
        return open_shards(LocalPlace(path.parent), options, path.name)
    if path.name.lower().endswith((*ARCHIVE_SUFFIXES, *COMPRESSED)):
        return open_archive(path, options.labelled)
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        raise UserError(
            f"{path} is neither a folder, nor a Parquet file, nor an image, nor a list file, table "
            "(.csv, .tsv, .jsonl) or archive (.zip, .tar); give one of these"
        )
    if options.labelled:
        raise NoLabelsError(f"{path} is a single image; give a folder with one folder per class")
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
