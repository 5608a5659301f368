"""`open_images`, and the table of all types of sources: named data sets, the hub, URLs, files and folders."""

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paucal.data.boxes.opening import as_unlabelled_set, find_annotation_files, open_tagged_images, read_boxes
from paucal.data.classes import with_plain_classes
from paucal.data.images import Hints, ImageSet
from paucal.data.label_kinds import (
    are_class_names,
    boxes_note,
    refuse_masks,
    refuse_non_class_folders,
    refuse_other_kinds,
)
from paucal.data.masks.recognition import exclude_masks
from paucal.data.named.table import NAMED, is_published_set
from paucal.data.shards.folders import LocalShardFolder, RemoteShardFolder, is_remote
from paucal.data.shards.opening import has_shards, is_shard, open_shards
from paucal.data.sources.archive import is_archive, open_archive
from paucal.data.sources.folder import open_folder, subfolders_of
from paucal.data.sources.joining import join_sets, split_location
from paucal.data.sources.parquet import (
    HUB_PREFIX,
    PARQUET_SUFFIXES,
    find_parquet,
    find_remote_parquet,
    open_hub,
    open_parquet,
    open_remote_parquet,
)
from paucal.data.sources.parquet_store import PARQUET_SUFFIX, RowFile
from paucal.data.sources.source import Source, SourceOptions
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.sources.table_columns import find_tables, tables_of_set
from paucal.data.sources.table_reading import LIST_SUFFIX, TABLE_SUFFIXES
from paucal.data.sources.tables import find_train_list, open_list, open_tables
from paucal.data.sources.voc import is_voc, open_voc
from paucal.data.splits.part_names import split_of_folder
from paucal.data.stores import ArrayStore, FileStore
from paucal.data.unreadable import ReportProgress
from paucal.types import NoLabelsError, UserError

BUILT_IN = "digits"
MAX_IMAGES_SEARCHED = 100_000  # a folder with this many images is not searched for annotation files of boxes
_MAX_GREY = 16  # scikit-learn's digits have 17 grey levels, 0 to 16


def open_images(  # noqa: PLR0913 (all arguments are optional)
    location: str | Path = BUILT_IN,
    *,
    labelled: bool = True,
    label_column: str | None = None,
    image_column: str | None = None,
    root: str | Path | None = None,
    download: bool = False,
    label_separator: str | None = None,
    progress: ReportProgress | None = None,
    skip_damaged: bool = False,
) -> ImageSet:
    """Open images by location; the pixels are read later, one image at a time.

    Args:
        location: "digits" for the built-in data (`./digits` for a folder called "digits"); a folder of images, or a zip
            or tar archive of a folder; a Parquet file in the Hugging Face layout, or a folder of such files; a folder
            of tar shards in WebDataset's layout (`shards/`), or the URL of such a folder; a table or a list file
            (`tables.py`), or a folder with a table or list file; a folder with PASCAL VOC's lists; "hf:OWNER/NAME" on
            the Hugging Face hub; the name of a published data set (`named/`), unless a file or folder has that name;
            one image file if `labelled` is False; or several of these, joined by ":" (";" on Windows).
        labelled: Whether to read labels. If False, all images are opened without labels, in folders nested in any way,
            for pre-training and prediction.
        label_column: Name of the column with the class in a table or Parquet file; None to detect the column.
        image_column: Name of the column with the path or the encoded image; None to detect the column.
        root: For a published data set, the folder of all such sets (None for `named.data_root`); if `root` is given,
            the name of a published data set takes precedence over a path. For a table or list file, the folder that the
            paths in the file are relative to.
        download: Whether a published data set or a data set of the Hugging Face hub may be downloaded.
        label_separator: Separator between several labels in one cell of a table; "none" for one label per cell; None to
            detect the separator.
        progress: Function called with (shards read, total shards) while shards without an index are read.
        skip_damaged: Whether shards that cannot be read are left out, with a note; if False, a UserError is raised.

    Example:
        >>> images = open_images("digits")
        >>> len(images), len(images.classes), images.store.read(0).size
        (1797, 10, (8, 8))
    """
    if root is not None and not (download or is_published_set(location, root) or Path(root).expanduser().is_dir()):
        raise UserError(f"--data-root: the folder {str(root)!r} does not exist; correct the path, or remove the flag.")
    root_path = None if root is None else Path(root).expanduser()
    options = SourceOptions(
        labelled, label_column, image_column, root_path, label_separator, progress, download, skip_damaged
    )
    if (images := _open_recognised(location, "name", options)) is not None:
        return images
    locations = split_location(location)
    sets = [_open_one_location(single, options) for single in locations]
    if labelled:
        sets = [_with_annotated_classes(single, images) for single, images in zip(locations, sets, strict=True)]
    images = sets[0] if len(sets) == 1 else join_sets(sets, str(location))
    if not labelled:
        return exclude_masks(images)
    if images.stream is None:
        refuse_masks(images)
    images = with_plain_classes(images)
    if len(images.classes) < 2:
        path = Path(images.location if is_remote(location) else location).expanduser()
        subfolders = [entry for entry in path.iterdir() if entry.is_dir()] if path.is_dir() else []
        suggestion = "."
        if len(subfolders) == 1 and sum(entry.is_dir() for entry in subfolders[0].iterdir()) > 1:
            suggestion = f"; did you mean {subfolders[0]}?"  # the folders in the only subfolder may be the classes
        raise UserError(
            f"{path} has only one class ('{''.join(images.classes)}'), but training a classifier needs at least two "
            f"class folders{suggestion}"
        )
    folder = Path(location).expanduser()
    if len(images) < MAX_IMAGES_SEARCHED and folder.is_dir() and (note := boxes_note(folder)):
        return replace(images, notes=(*images.notes, note))
    return images


def _open_recognised(
    location: str | Path, kind: Literal["name", "address", "file", "folder"], options: SourceOptions
) -> Any:
    for source in SOURCES:
        if source.kind == kind and (recognition := source.recognise(location, options)):
            return source.open(location, recognition, options)
    return None


def _open_one_location(location: str | Path, options: SourceOptions) -> ImageSet:
    """Open one location that is not the name of built-in or published data."""
    if (images := _open_recognised(location, "address", options)) is not None:
        return images
    path = Path(location).expanduser()
    if not path.exists():
        if not path.parent.is_dir():
            raise UserError(f"{path} does not exist, nor does its folder {path.parent}; check the spelling.")
        names = [entry.name for entry in path.parent.iterdir()]
        names += [] if path.name != str(path) else [*NAMED, BUILT_IN]
        similar = difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)
        advice = f"did you mean {' or '.join(similar)}?" if similar else "check the spelling."
        raise UserError(f"{path} does not exist; {advice}")
    try:
        images = _open_recognised(path, "file" if path.is_file() else "folder", options)
        if images is None:
            nouns = dict.fromkeys(source.noun for source in SOURCES if source.kind == "file")
            raise UserError(f"{path} has an unsupported format; expected a folder, or {', or '.join(nouns)}.")
        return images
    except UserError:
        if options.labelled and (images := _open_tagged_or_refuse(path)) is not None:
            return images
        if path.is_file() and find_annotation_files(path):
            return as_unlabelled_set(*read_boxes(path))
        raise


def _with_annotated_classes(location: str, images: ImageSet) -> ImageSet:
    """Return the images of a location, with labels from annotation files if the folders are not classes."""
    path = Path(location).expanduser()
    if not are_class_names(images.classes):
        images = _open_tagged_or_refuse(path) or images
    refuse_non_class_folders(path, images.classes)
    return images


def _open_tagged_or_refuse(path: Path) -> ImageSet | None:
    """Open a location whose files label whole images; None without such files; refuse boxes and masks."""
    if (images := open_tagged_images(path)) is None:
        refuse_other_kinds(path, "train")
    return images


def _open_named(name: str, _: Any, options: SourceOptions) -> ImageSet:
    # Imported here because torchvision takes seconds to import, and most data does not need it.
    from paucal.data.named.store import open_named

    return open_named(name, options.root, options.download, options.labelled)


def _open_remote(location: str, _: Any, options: SourceOptions) -> ImageSet:
    folder, _, file = location.rstrip("/").rpartition("/")
    if file.endswith(PARQUET_SUFFIX):  # a single file can be opened even if the storage cannot list files
        shard_folder = RemoteShardFolder(folder)
        return open_remote_parquet([RowFile(shard_folder, shard_folder.find_file(file))], options)
    shard_folder = RemoteShardFolder(location)
    if files := find_remote_parquet(shard_folder):
        return open_remote_parquet(files, options)
    return open_shards(shard_folder, options)


def _open_image(path: Path, _: Any, options: SourceOptions) -> ImageSet:
    if options.labelled:
        raise NoLabelsError(f"{path} is a single image; give a folder with one folder per class.")
    return ImageSet(
        name=path.name,
        location=str(path.resolve()),
        classes=(),
        keys=[path.name],
        labels=np.asarray([-1], dtype=np.int64),
        declared_splits=[""],
        store=FileStore(path.resolve().parent, [path.name]),
    )


def _open_tables_of(path: Path, _: Any, options: SourceOptions) -> ImageSet:
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in TABLE_SUFFIXES)
    tables = tables_of_set(files[0], options) if len(files) == 1 else find_tables(path, options)
    if not tables:
        raise UserError(
            f"--image-column, --label-column and --label-separator are for tables, but {path} contains no table: give "
            "a CSV file."
        )
    return open_tables(tables, options)


def _open_classes(path: Path, _: Any, options: SourceOptions) -> ImageSet:
    """Open a folder of class folders; if there are no class folders, open the tables that describe the images."""
    try:
        images = open_folder(path)
    except UserError:
        tables = find_tables(path, options)
        if not tables:
            refuse_masks(open_folder(path, labelled=False))
            refuse_non_class_folders(path, tuple(subfolders_of(path)))
            raise
        return open_tables(tables, options)
    # If train/val/test folders contain no class folders, `open_folder` has read them as classes.
    may_lack_classes = len(images.classes) < 2 or all(map(split_of_folder, images.classes))
    tables = find_tables(path, options) if may_lack_classes else {}
    return open_tables(tables, options) if tables else images


def _has_suffix(*suffixes: str) -> Any:
    return lambda path, options: path.suffix.lower() in suffixes


# The types of sources in order of precedence: a location is opened by the first source of its kind that recognises it.
SOURCES = (
    Source("the built-in digits", "name", lambda name, options: name == BUILT_IN,
           lambda name, recognised, options: open_digits(options.labelled)),
    Source("a published set", "name", lambda name, options: is_published_set(name, options.root), _open_named),
    Source("a set of the Hugging Face hub", "address", lambda url, options: str(url).startswith(HUB_PREFIX), open_hub),
    Source("Parquet files or shards at a URL", "address", lambda url, options: is_remote(url), _open_remote),
    Source("a Parquet or Arrow file (.parquet, .arrow)", "file", _has_suffix(*PARQUET_SUFFIXES),
           lambda path, recognised, options: open_parquet(path.parent, [path], options)),
    Source("a list file (.txt)", "file", _has_suffix(LIST_SUFFIX),
           lambda path, recognised, options: open_list(path, options)),
    Source("a table (.csv, .tsv, .jsonl)", "file", _has_suffix(*TABLE_SUFFIXES),
           lambda path, recognised, options: open_tables(tables_of_set(path, options), options)),
    Source("a shard (.tar)", "file", lambda path, options: path.suffix.lower() == ".tar" and is_shard(path),
           lambda path, recognised, options: open_shards(LocalShardFolder(path.parent), options, path.name)),
    Source("an archive of a folder (.zip, .tar)", "file", lambda path, options: is_archive(path),
           lambda path, recognised, options: open_archive(path, options.labelled)),
    Source("an image", "file", _has_suffix(*IMAGE_SUFFIXES), _open_image),
    Source("a folder of Parquet files", "folder", lambda path, options: find_parquet(path), open_parquet),
    Source("a folder of images with a table", "folder", lambda path, options: options.image_column is not None,
           _open_tables_of),
    Source("PASCAL VOC's lists", "folder", lambda path, options: is_voc(path),
           lambda path, recognised, options: open_voc(path, options.labelled)),
    Source("a folder of shards", "folder", lambda path, options: has_shards(path),
           lambda path, recognised, options: open_shards(LocalShardFolder(path), options)),
    # If labels are not needed, all images in a folder are used, including images that are in no list or table.
    Source("a folder of unlabelled images", "folder", lambda path, options: not options.labelled,
           lambda path, recognised, options: open_folder(path, labelled=False)),
    Source("a folder of images with a train list", "folder", lambda path, options: find_train_list(path, options.root),
           lambda path, train_list, options: open_list(train_list, options)),
    Source("a folder of images with a table", "folder",
           lambda path, options: options.label_column is not None or options.separator is not None, _open_tables_of),
    Source("class folders", "folder", lambda path, options: True, _open_classes),
)  # fmt: skip


def open_digits(labelled: bool = True) -> ImageSet:
    """Return scikit-learn's digits: 1,797 images of 8 x 8 pixels, which need no download."""
    from sklearn.datasets import load_digits  # imported here, since the import takes a second

    data: Any = load_digits()
    pixels = np.rint(data.images * (255 / _MAX_GREY)).astype(np.uint8)
    return ImageSet(
        name="digits",
        location="digits",
        classes=tuple(str(name) for name in data.target_names) if labelled else (),
        keys=[f"digits#{row}" for row in range(len(pixels))],
        labels=data.target.astype(np.int64) if labelled else np.full(len(pixels), -1, dtype=np.int64),
        declared_splits=[""] * len(pixels),
        store=ArrayStore(pixels),
        # With 8 pixels, a ViT would have too few tokens. A first run of 16 epochs takes about a minute.
        hints=Hints(flip=False, image_size=16, epochs=16),
    )
