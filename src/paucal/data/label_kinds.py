"""The kinds of labels (classes, boxes, masks): how each kind is recognised in files, and which command learns it."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from paucal.data.boxes.opening import LAYOUTS, STRUCTURE_FOLDERS, find_annotation_files, open_tagged_images
from paucal.data.boxes.tree import folder_tree, open_tree
from paucal.data.images import ImageSet
from paucal.data.masks.pairs import is_mask_table
from paucal.data.masks.panoptic import PANOPTIC_NAME, find_panoptic
from paucal.data.masks.recognition import find_masks_in_set
from paucal.data.shards.opening import has_shards, is_shard
from paucal.data.sources.archive import is_archive, open_archive
from paucal.data.sources.folder import open_folder
from paucal.data.sources.parquet import PARQUET_SUFFIXES, find_parquet
from paucal.data.sources.source import SourceOptions
from paucal.data.sources.table_columns import find_tables, is_image_table
from paucal.data.sources.table_reading import TABLE_SUFFIXES
from paucal.data.sources.tables import find_train_list
from paucal.data.sources.voc import is_voc
from paucal.data.splits.part_names import split_in_name
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted, join_first_few

MAX_FOLDERS_SHOWN, MAX_CLASSES_SHOWN = 5, 3  # largest numbers of folders and classes that a message names


@dataclass(frozen=True)
class LabelKind:
    """A kind of labels, which the paucal command `verb` learns."""

    verb: str
    noun: str  # plural noun for the labels, such as "masks"
    expected_files: str  # description of what the command reads
    describe: Callable[[Path], str]  # describes the labels at a path; returns "" without labels
    advice: Mapping[str, str] = field(default_factory=dict)  # by another verb: what to do if there are only its labels


def describe_labels(path: Path, excluded_verb: str = "") -> dict[str, str]:
    """Return a description of the labels at a path for each paucal command that can learn from them."""
    descriptions = {kind.verb: _describe_kind(kind, path) for kind in LABEL_KINDS if kind.verb != excluded_verb}
    return {verb: description for verb, description in descriptions.items() if description}


def refuse_other_kinds(path: Path, verb: str) -> None:
    """Raise a UserError if a path has labels for commands other than `verb`; it names their kinds and commands."""
    if other_kinds := describe_labels(path, excluded_verb=verb):
        raise _other_kinds_error(str(path), other_kinds, verb)


@contextmanager
def report_other_label_kinds(path: Path, verb: str) -> Iterator[None]:
    """In the `with` block, turn a `NoLabelsError` into an error that names other labels at the path, if any."""
    try:
        yield
    except NoLabelsError:
        refuse_other_kinds(path, verb)
        raise


def refuse_masks(images: ImageSet) -> None:
    """Refuse images with masks where images with classes are expected."""
    if masks := find_masks_in_set(images.keys, images.store):
        raise _other_kinds_error(images.location, {"segment": masks.describe()}, "train")


def refuse_non_class_folders(path: Path, names: tuple[str, ...]) -> None:
    """Refuse folders called `images`, `labels` or similar as classes; list their contents and what commands read."""
    are_folders = bool(names) and all(os.path.isdir(path / name) for name in names)
    if not are_folders or not {name.lower() for name in names} <= set(STRUCTURE_FOLDERS):
        return
    tree, contents = open_tree(path), []
    for name in names[:MAX_FOLDERS_SHOWN]:
        suffixes = Counter(PurePosixPath(file).suffix.lower() for file in tree.files if file.startswith(f"{name}/"))
        counts = ", ".join(f"{count} {suffix or 'files'}" for suffix, count in suffixes.most_common(2))
        contents.append(f"{name}/ ({counts or 'empty'})")
    n_loose = sum("/" not in file for file in tree.files)
    contents_text = ", ".join(contents) + (f" and {counted(n_loose, 'other file')}" if n_loose else "")
    expected = "; ".join(f"`paucal {kind.verb}` reads {kind.expected_files}" for kind in LABEL_KINDS)
    raise UserError(
        f"{path} has {contents_text}, which are not classes, and no boxes or masks were recognised: {expected}."
    )


def _other_kinds_error(location: str, other_kinds: dict[str, str], verb: str) -> UserError:
    verb_kind = next(kind for kind in LABEL_KINDS if kind.verb == verb)
    verbs = ", ".join(f"`paucal {kind.verb}` learns {kind.noun}" for kind in LABEL_KINDS if kind.verb in other_kinds)
    advice = dict.fromkeys(verb_kind.advice[other] for other in other_kinds if other in verb_kind.advice)
    problem = f"{location} has {' and '.join(other_kinds.values())}, and no {verb_kind.noun}"
    return UserError(f"{problem}: {'; '.join([verbs, *advice])}.")


def _describe_kind(kind: LabelKind, path: Path) -> str:
    try:
        return kind.describe(path)
    except UserError:  # a damaged or ambiguous path is reported when it is opened
        return ""


def _describe_boxes(path: Path) -> str:
    annotation_files = find_annotation_files(path)
    with suppress(UserError):  # the error is reported when the path is opened
        annotation_files = None if open_tagged_images(path) is not None else annotation_files
    if annotation_files is None:
        return ""
    return f"boxes{f' ({annotation_files.shown_path})' if path.is_dir() else ''} as {annotation_files.name}"


def _describe_masks(path: Path) -> str:
    if is_mask_table(path):
        return "a table of masks"
    is_json = path.is_file() and path.suffix.lower() == ".json"
    if not path.is_dir() and not is_archive(path) and not is_json:
        return ""
    tree = folder_tree(path.parent, [path.name]) if is_json else open_tree(path)
    if panoptic := find_panoptic(tree):
        return f"masks as {PANOPTIC_NAME} ({panoptic[0]})"
    masks = find_masks_in_set(tree.images, tree.make_store(list(tree.images)))
    return masks.describe() if masks else ""


def _describe_classes(path: Path) -> str:
    is_file = path.is_file() and not is_archive(path)
    if find_parquet(path) if path.is_dir() else path.suffix.lower() in PARQUET_SUFFIXES:
        return "images in Parquet files"
    if has_shards(path) if path.is_dir() else is_shard(path):
        return "images in shards"
    with suppress(UserError):  # a damaged annotation file is reported when boxes are opened
        if (images := open_tagged_images(path)) is not None:
            return f"labels of whole images ({images.notes[0]})"
    # Checked first, since a table of boxes also has columns of images and classes.
    annotation_files = find_annotation_files(path)
    if is_file:
        is_other = path.suffix.lower() not in TABLE_SUFFIXES or annotation_files is not None or is_mask_table(path)
        return "" if is_other or not is_image_table(path, SourceOptions()) else "a table of classes"
    if path.is_dir():
        boxes = set(annotation_files.files) if annotation_files else set()
        tables = find_tables(path, SourceOptions())
        if tables and not {table.relative_to(path).as_posix() for table in tables.values()} & boxes:
            return f"a table of classes ({next(iter(tables.values())).name})"
        if is_voc(path):
            return "PASCAL VOC lists of classes"
        if train_list := find_train_list(path):
            return f"a list of images and classes ({train_list.name})"
    names = (open_archive(path) if is_archive(path) else open_folder(path)).classes
    if not are_class_names(names) or _describe_masks(path):
        return ""
    return f"class folders ({join_first_few(names, MAX_CLASSES_SHOWN)})"


def are_class_names(names: Sequence[str]) -> bool:
    """Return whether folders may be classes: two or more, not only splits, and none with a name such as `labels`."""
    are_splits = all(split_in_name(name) for name in names)  # such as `train2017` and `val2017`
    return len(names) >= 2 and not are_splits and not {name.lower() for name in names} & set(STRUCTURE_FOLDERS)


def boxes_note(path: Path) -> str:
    """Return a note that the path also has boxes, for commands that read classes or masks; "" if it has no boxes."""
    boxes = _describe_kind(next(kind for kind in LABEL_KINDS if kind.verb == "detect"), path)
    return f"there are also {boxes}: `paucal detect` learns boxes" if boxes else ""


_CLASSIFY_ADVICE = (
    "to classify, write a table of image_path,label with the classes that each image shows, such as 'cat;dog', or "
    "rename the folders if they are classes after all"
)
LABEL_KINDS = (
    LabelKind(
        "train",
        "classes of images",
        "class folders, or a table of image_path,label",
        _describe_classes,
        {"detect": _CLASSIFY_ADVICE, "segment": _CLASSIFY_ADVICE},
    ),
    LabelKind("detect", "boxes", f"boxes as {', '.join(layout.name for layout in LAYOUTS)}", _describe_boxes),
    LabelKind(
        "segment",
        "masks",
        "masks with the names of their images, in a folder such as masks/ or in any two folders with --images and "
        "--masks",
        _describe_masks,
        {"detect": "`paucal convert DATA OUT --to masks` draws boxes with outlines as masks"},
    ),
)
