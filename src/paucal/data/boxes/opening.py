"""Finds the layout of the boxes in a folder, an archive or a file, and reads the annotation files.

`LAYOUTS` lists the layouts that are read, and `UNSUPPORTED` the layouts that are only recognised, for messages.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paucal.data.boxes import coco, label_studio, labelme, table, xml_layouts, yolo
from paucal.data.boxes.annotations import AnnotationSet, Layout
from paucal.data.boxes.naming import LABEL_FOLDERS, MissingImage
from paucal.data.boxes.parts import assign_splits
from paucal.data.boxes.tree import Tree, ascii_bytes, folder_tree, open_tree
from paucal.data.images import ImageSet
from paucal.data.sources.archive import ARCHIVE_SUFFIXES, is_archive
from paucal.data.sources.folder import IMAGE_FOLDERS
from paucal.data.sources.labels import labels_from_names
from paucal.data.splits.part_names import split_in_folders
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted, left_out_notes, was_or_were

# Layouts in order of preference, for data sets that have the same boxes in several layouts.
LAYOUTS: tuple[Layout, ...] = (
    *(xml_layouts.VOC, coco.LAYOUT, xml_layouts.CVAT, labelme.LAYOUT, label_studio.LAYOUT, yolo.LAYOUT, table.LAYOUT),
)
# Names of the layouts that may have labels of whole images.
TAGGED_LAYOUTS = (xml_layouts.CVAT.name, label_studio.LAYOUT.name)
EXPECTED_TEXT = "; ".join(layout.expected for layout in LAYOUTS)
SUFFIXES = tuple(dict.fromkeys(suffix for layout in LAYOUTS for suffix in layout.suffixes))
STRUCTURE_FOLDERS = (*IMAGE_FOLDERS, *LABEL_FOLDERS, "imagesets")  # common names of folders that are not classes

SEARCHED_BYTES = 1 << 16  # bytes at the start and at the end of a file that are searched for an unsupported layout
MAX_FILES_SEARCHED = 20  # number of files that are searched for each unsupported layout
# Patterns of a number, of the first line of a KITTI file, and of a line of a DOTA file.
_NUMBER_PATTERN = rb"-?\d+(?:\.\d+)?(?:e-?\d+)?[ \t]*"
_KITTI_PATTERN = rb"\A\s*[A-Za-z]\w*[ \t]+(?:" + _NUMBER_PATTERN + rb"){14,15}(?:\r?\n|\Z)"
_DOTA_PATTERN = rb"(?:\A|\n)(?:" + _NUMBER_PATTERN + rb"){8}[A-Za-z][\w-]*[ \t]+[0-3][ \t\r]*(?:\n|\Z)"


class UnsupportedLayout(NamedTuple):
    """A layout that is not read, but recognised by the suffix of a file and a pattern in the content of the file."""

    name: str
    suffixes: tuple[str, ...]
    pattern: re.Pattern[bytes]


def _entries_pattern(*names: str) -> re.Pattern[bytes]:
    """Return a pattern that matches JSON text in which all these entries occur."""
    return re.compile("".join(f'(?=.*"{name}"\\s*:)' for name in names).encode(), re.DOTALL)


UNSUPPORTED: tuple[UnsupportedLayout, ...] = (
    UnsupportedLayout("VGG Image Annotator (VIA)", (".json",), _entries_pattern("shape_attributes")),
    UnsupportedLayout("VGG Image Annotator (VIA)", (".csv",), re.compile(rb"region_shape_attributes")),
    UnsupportedLayout("Label Studio CSV", (".csv",), re.compile(rb'""(?:rectangle|polygon|brush|ellipse)labels""')),
    UnsupportedLayout("Supervisely", (".json",), _entries_pattern("objects", "classTitle")),
    UnsupportedLayout("Create ML", (".json",), _entries_pattern("annotations", "coordinates", "label")),
    UnsupportedLayout("Datumaro", (".json",), _entries_pattern("items", "annotations", "bbox", "label_id")),
    UnsupportedLayout("BDD100K", (".json",), _entries_pattern("labels", "box2d")),
    UnsupportedLayout("SageMaker Ground Truth", (".manifest", ".jsonl"), re.compile(rb'"source-ref"\s*:')),
    UnsupportedLayout("TFRecord", (".tfrecord", ".record", ".tfrecords"), re.compile(b"")),
    UnsupportedLayout("KITTI", (".txt",), re.compile(_KITTI_PATTERN)),
    UnsupportedLayout("DOTA", (".txt",), re.compile(_DOTA_PATTERN)),
    UnsupportedLayout("VisDrone", (".txt",), re.compile(rb"\A\s*(?:\d+,){7}\d+,?\s*(?:\r?\n|\Z)")),
)


@dataclass(frozen=True)
class AnnotationFiles:
    """All annotation files of a data set that have the same layout."""

    name: str
    files: Sequence[str]  # paths of the files, at least one
    read: Callable[[Tree, Sequence[str]], AnnotationSet] | None = None  # reads the files; None if unsupported
    advice: str = "convert the boxes to COCO JSON"  # what the user can do if the layout is unsupported

    @property
    def shown_path(self) -> str:
        """Path for messages: the folder of the files if each image has an annotation file, else the first file."""
        folders = {file.rpartition("/")[0] for file in self.files}
        has_file_per_image = self.name not in (coco.LAYOUT.name, table.LAYOUT.name, *TAGGED_LAYOUTS)
        return "".join(folders) if len(folders) == 1 and has_file_per_image and folders != {""} else self.files[0]

    @property
    def are_in_class_folders(self) -> bool:
        """Whether all files are in folders that may be named after classes."""
        folders = [file.rpartition("/")[0] for file in self.files]
        names = {name for folder in folders for name in folder.lower().split("/")}
        return all(folders) and names.isdisjoint(STRUCTURE_FOLDERS) and not any(map(split_in_folders, self.files))


def find_annotation_files(path: Path) -> AnnotationFiles | None:
    """Return the annotation files at a path (a folder, an archive or a file); None if no layout is recognised."""
    has_files = path.is_dir() or is_archive(path)
    if not path.exists() or not (has_files or path.suffix.lower() in SUFFIXES):
        return None
    tree = open_tree(path) if has_files else folder_tree(path.parent, [path.name])
    return next(iter(find_annotation_files_in_tree(tree)), None) or find_unsupported_files(tree)


def find_annotation_files_in_tree(tree: Tree) -> list[AnnotationFiles]:
    """Return the annotation files of a tree in supported layouts, grouped by layout."""
    groups = ((layout, layout.find(tree, tree.files)) for layout in LAYOUTS)
    return [AnnotationFiles(layout.name, files, layout.read) for layout, files in groups if files]


def find_unsupported_files(tree: Tree) -> AnnotationFiles | None:
    """Return a file in an unsupported layout or, in a folder without images, an archive with annotation files.

    The result is None if there is no such file.
    """
    for layout in UNSUPPORTED:
        for file in tree.files_ending(*layout.suffixes)[:MAX_FILES_SEARCHED]:
            if layout.pattern.search(ascii_bytes(tree.peek(file, SEARCHED_BYTES))):
                return AnnotationFiles(f"{layout.name} annotations", [file])
    archives = [] if tree.images or not Path(tree.location).is_dir() else tree.files_ending(*ARCHIVE_SUFFIXES)
    if not archives:
        return None
    try:
        boxes_in_archive = find_annotation_files(Path(tree.location, archives[0]))
    except UserError:  # a damaged archive is reported when it is opened
        return None
    advice = "give one archive as DATA, or unpack the archives"
    return boxes_in_archive and AnnotationFiles(f"{boxes_in_archive.name} in archives", archives[:1], advice=advice)


def read_boxes(path: Path) -> tuple[Tree, AnnotationSet]:
    """Read the annotation files at a path."""
    if path.is_file() and not is_archive(path):
        return _read_single_file(path)
    tree = open_tree(path)
    groups = find_annotation_files_in_tree(tree)
    files_by_group = [[file for file in group.files if not root_of_set(file)] for group in groups]
    root_groups = [replace(group, files=files) for group, files in zip(groups, files_by_group, strict=True) if files]
    if not root_groups:
        if roots := sorted({root_of_set(file) for group in groups for file in group.files}):
            locations = " or ".join(repr(tree.shown_path(root)) for root in roots[:3])
            raise UserError(f"{tree.shown_root!r} has several sets with boxes in subfolders: did you mean {locations}?")
        _refuse_unsupported(tree)
        files = tree.files_ending(".json")
        if len(files) == 1:
            coco.read(tree, files)  # raises an error with the reason why this file has no boxes
        raise NoLabelsError(f"{tree.shown_root!r} has no annotations of boxes: expected {EXPECTED_TEXT}.")
    annotations = _read_preferred_layout(root_groups, tree)
    # Images without annotations are left out, since they may show objects that were not annotated.
    keys = {image.key for image in annotations.images}
    folders = {key.rpartition("/")[0] for key in keys}
    n_unannotated = sum(image.rpartition("/")[0] in folders and image not in keys for image in tree.images)
    note = f"{counted(n_unannotated, 'image')} without an annotation {'is' if n_unannotated == 1 else 'are'} left out"
    notes = [*tree.notes, *annotations.notes, *([note] if n_unannotated else [])]
    if other_files := [file for group in groups for file in group.files if root_of_set(file)]:
        count = counted(len(other_files), "annotation file")
        other_set = f"of another set in {root_of_set(other_files[0])!r}"
        notes.append(f"{count} {other_set} {was_or_were(len(other_files))} skipped")
    return tree, assign_splits(replace(annotations, notes=tuple(notes)), tree)


def open_tagged_images(path: Path) -> ImageSet | None:
    """Return the images and labels of annotation files that label whole images and have no boxes, if there are any."""
    files = find_annotation_files(path)
    if files is None or files.name not in TAGGED_LAYOUTS:
        return None
    tree, annotations = read_boxes(path)
    tags = [image.tags for image in annotations.images]
    if any(image.boxes for image in annotations.images) or not any(tags):
        return None
    is_multi_label = any(len(set(names)) > 1 for names in tags)
    rows = [index for index, names in enumerate(tags) if names or is_multi_label]
    labels = labels_from_names([tags[index] for index in rows], is_multi_label, f"from {files.name}")
    images = as_unlabelled_set(tree, annotations).select(np.asarray(rows, dtype=np.int64))
    notes = left_out_notes(len(tags) - len(rows), "image without a label", "images without a label")
    all_notes = (f"read from {files.shown_path}", *images.notes, *notes, *labels.notes)
    return replace(
        images, classes=labels.classes, labels=labels.class_numbers, multi_hot=labels.multi_hot, notes=all_notes
    )


def as_unlabelled_set(tree: Tree, annotations: AnnotationSet) -> ImageSet:
    """Return the images that annotation files describe, as a set without labels and boxes."""
    keys, declared = [image.key for image in annotations.images], [image.declared_split for image in annotations.images]
    labels = np.full(len(keys), -1, dtype=np.int64)
    return ImageSet(
        tree.name, tree.location, (), keys, labels, declared, tree.make_store(keys), notes=annotations.notes
    )


def root_of_set(file: str) -> str:
    """Return the folder of the data set that an annotation file belongs to; "" for the root of the tree.

    Folders such as "Annotations", "labels" or "train" are inside the data set, and the folders above them contain it.

    Example:
        >>> [root_of_set(file) for file in ("VOCdevkit/VOC2012/Annotations/1.xml", "train/labels/1.txt", "a b/1.xml")]
        ['VOCdevkit/VOC2012', '', '']
    """
    folders = file.split("/")[:-1]
    index = next((index for index, folder in enumerate(folders) if folder.lower() in STRUCTURE_FOLDERS), 0)
    parents = folders[:index]
    while parents and split_in_folders(f"{parents[-1]}/"):
        parents.pop()
    return "/".join(parents)


def _read_preferred_layout(groups: Sequence[AnnotationFiles], tree: Tree) -> AnnotationSet:
    """Read the files of each layout, and return the annotations of the layout with the most images.

    A layout that cannot be read is skipped with a note, unless it is the first.
    """
    annotations: dict[str, AnnotationSet] = {}
    notes: list[str] = []
    for group in groups:
        assert group.read is not None
        try:
            annotations[group.name] = group.read(tree, group.files)
        except UserError as problem:
            if group is groups[0]:
                raise
            notes.append(f"{group.name} beside {groups[0].name} was skipped, because it cannot be read: {problem}")
    keys = {name: {image.key for image in content.images} for name, content in annotations.items()}
    preferred = max(keys, key=lambda name: len(keys[name]))
    for name in [name for name in keys if name != preferred]:
        if not keys[name] <= keys[preferred]:
            raise UserError(
                f"{tree.shown_root!r} has boxes as {preferred} ({counted(len(keys[preferred]), 'image')}) and as "
                f"{name} ({counted(len(keys[name]), 'image')}) of different images: move the files of one layout away, "
                "or give an annotation file as DATA."
            )
        notes.append(f"the boxes were read as {preferred}, and the boxes as {name} were skipped")
    return replace(annotations[preferred], notes=(*annotations[preferred].notes, *notes))


def _read_single_file(file: Path) -> tuple[Tree, AnnotationSet]:
    """Read one annotation file, whose images are in the folder of the file or below the parent of this folder."""
    layouts = [layout for layout in LAYOUTS if file.suffix.lower() in layout.suffixes]
    _refuse_unsupported(folder_tree(file.parent, [file.name]))
    if not layouts:
        problem_text = "is not a folder, an archive or a file with boxes"
        raise NoLabelsError(f"{str(file)!r} {problem_text}: expected {EXPECTED_TEXT}.")
    # A damaged file matches no layout; the first layout then reports the damage.
    tree_of_parent = folder_tree(file.parent)
    layout = next((layout for layout in layouts if layout.find(tree_of_parent, [file.name])), layouts[0])
    if (tree := layout.tree(file)) is not None:
        return tree, assign_splits(layout.read(tree, [str(file.absolute())]), tree)
    problem: UserError | None = None
    for root in layout.roots(file):
        try:
            tree = tree_of_parent if root == file.parent else folder_tree(root)
            path = file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file.absolute())
            annotations = assign_splits(layout.read(tree, [path]), tree)
        except MissingImage as error:
            problem = problem or error
        except UserError:
            if problem is None or root == file.parent:
                raise
        else:
            # Images that are all in one split, as in "train.json", are treated as if no split were declared.
            if len({image.declared_split for image in annotations.images}) == 1:
                images = [replace(image, declared_split="") for image in annotations.images]
                annotations = replace(annotations, images=images)
            return tree, annotations
    assert problem is not None
    raise problem


def _refuse_unsupported(tree: Tree) -> None:
    if files := find_unsupported_files(tree):
        raise UserError(
            f"{tree.shown_root!r} has boxes as {files.name} ({files.shown_path}), which is not supported: "
            f"{files.advice}."
        )
