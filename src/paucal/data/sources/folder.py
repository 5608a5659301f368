"""Folders of image files: class folders, class folders in train/val/test folders, or any nested folders."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.sources.suffixes import IMAGE_SUFFIXES, install_command
from paucal.data.splits.part_names import PART_BY_WORD
from paucal.data.stores import FileStore, Store
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted, was_or_were

IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "photos", "pictures", "pics", "frames")
_MAX_SUFFIXES_SHOWN = 5  # maximum number of suffixes in a note
# Folders that are created by macOS in archives, by network storage next to photos, by Windows and Linux on disks, and
# by Python next to code.
_SYSTEM_FOLDERS = {
    *("__macosx", "@eadir", "#recycle", "@recycle", "#snapshot", "$recycle.bin", "recycler"),
    *("system volume information", "lost+found", "__pycache__"),
}


@dataclass(frozen=True)
class ImageContainer:
    """A folder of images, or an archive of such a folder, with the name and location of the image set."""

    name: str
    location: str
    make_store: Callable[[list[str]], Store]
    list_subfolders: Callable[[str], list[str]]  # (path of a folder from the root, or "") -> names of its subfolders


def open_folder(root: Path, labelled: bool = True) -> ImageSet:
    """Open a folder of images.

    If `labelled`, `root` contains class folders, or the splits of a data set: `train`, `val` (also `valid`,
    `validation`, `dev`) and `test` (also `testing`), in upper or lower case, with class folders inside. Images may be
    nested deeper inside a class folder. Classes are numbered in lexicographic order over the union of all splits, so
    labels do not depend on classes that are missing in a split. If not `labelled`, all images below `root` are opened
    without labels; images in a folder of a split still belong to that split.
    """
    other_suffixes: Counter[str] = Counter()
    links: dict[str, str] = {}
    keys = find_images(root, other_suffixes, links)
    real_root = root.resolve()
    container = ImageContainer(
        name=real_root.name,
        location=str(real_root),
        make_store=lambda keys: FileStore(real_root, keys),
        list_subfolders=lambda subfolder: subfolders_of(root / subfolder),
    )
    images = open_container(container, keys, other_suffixes, labelled, root)
    notes = (f"the folders {link} and {folder} are the same, and were read once" for link, folder in links.items())
    return replace(images, notes=(*images.notes, *sorted(notes)))


def subfolders_of(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden and system folders."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not is_ignored(entry.name))


def open_container(
    container: ImageContainer, keys: list[str], other_suffixes: Counter[str], labelled: bool, root: Path
) -> ImageSet:
    """Open a folder or archive as `open_folder` describes, given the sorted paths of its images from the root."""
    notes = _note_on_other_files(other_suffixes)
    if not keys:
        other_files = f"; {notes[0]}" if notes else ""
        raise UserError(
            f"there are no images in {root} (expected files ending in {', '.join(IMAGE_SUFFIXES)}){other_files}"
        )
    folders = container.list_subfolders("")
    if not labelled:
        return _image_set(container, keys, [None] * len(keys), splits_from_folders(keys), notes)
    keys_in_root = [key for key in keys if "/" not in key]
    if keys_in_root and folders:
        notes.append(f"{counted(len(keys_in_root), 'image')} outside of the folders {_left_out_text(keys_in_root)}")
    keys = [key for key in keys if "/" in key]
    part_folders = [folder for folder in folders if folder.lower() in PART_BY_WORD]
    if part_folders:
        folders_with_images = {key.split("/")[0] for key in keys}
        other_folders = [folder for folder in folders if folder not in part_folders and folder in folders_with_images]
        if not other_folders:
            return _open_parts(container, root, part_folders, keys, notes)
        # If there are other folders with images, folders called "train" or "test" must be classes themselves.
        if any(key.count("/") >= 2 for key in keys if key.split("/")[0] in part_folders):
            parts_text, others_text = _quote_few(part_folders), _quote_few(other_folders)
            raise UserError(
                f"{root} has {parts_text} with class folders, and also images in {others_text}; move {others_text} "
                f"into one of {parts_text}, or out of {root}."
            )
    if len(part_folders) > 1:
        notes.append(f"{_quote_few(part_folders)} have no class folders, so these folders are read as classes")
    if not folders:
        raise NoLabelsError(
            f"{root} has images but no class folders; expected {root.name}/<class>/<image> "
            "(use paucal predict for images without labels)"
        )
    classes_of_images = [key.split("/")[0] for key in keys]
    _refuse_empty_classes(root, folders, classes_of_images)
    return _image_set(container, keys, classes_of_images, [""] * len(keys), notes)


def _open_parts(
    container: ImageContainer, root: Path, part_folders: list[str], keys: list[str], notes: list[str]
) -> ImageSet:
    repeated = [part for part, n in Counter(PART_BY_WORD[folder.lower()] for folder in part_folders).items() if n > 1]
    if repeated:
        raise UserError(
            f"{root} has more than one folder for {repeated[0]} ({_quote_few(part_folders)}); keep one folder."
        )
    class_folders: list[str] = []
    for folder in part_folders:
        subfolders = container.list_subfolders(folder)
        if not subfolders:
            raise (UserError if any(map(container.list_subfolders, part_folders)) else NoLabelsError)(
                f"{root / folder} has no class folders inside; expected {folder}/<class>/<image> "
                "(use paucal predict for images without labels)"
            )
        class_folders.extend(f"{folder}/{name}" for name in subfolders)
    keys_outside = [key for key in keys if key.count("/") == 1]
    if keys_outside:
        notes.append(f"{counted(len(keys_outside), 'image')} outside of class folders {_left_out_text(keys_outside)}")
    keys = [key for key in keys if key.count("/") >= 2]
    classes_of_images = [key.split("/")[1] for key in keys]
    _refuse_empty_classes(root, class_folders, classes_of_images)
    return _image_set(container, keys, classes_of_images, [_split_from_folder(key) for key in keys], notes)


def _refuse_empty_classes(root: Path, class_folders: list[str], classes_of_images: list[str]) -> None:
    """Raise a UserError if a class folder, given relative to `root`, has no images."""
    empty = sorted(folder for folder in class_folders if folder.rpartition("/")[2] not in classes_of_images)
    for folder in empty:
        others = (other for other in class_folders if other != folder)
        if duplicate := next((other for other in others if _is_same_file(root / folder, root / other)), ""):
            raise UserError(
                f"the class folders '{folder}' and '{duplicate}' in {root} are the same folder: remove the link."
            )
    if empty:
        raise UserError(f"class folder {_quote_few(empty)} in {root} has no images; add images or remove the folder.")


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:  # the folders are in an archive, or one cannot be read
        return False


def _image_set(
    container: ImageContainer,
    keys: list[str],
    class_names: list[str] | list[None],
    declared: list[str],
    notes: list[str],
) -> ImageSet:
    """Return the image set of a container, given the class name of each image, or None for each unlabelled image."""
    classes = tuple(sorted({name for name in class_names if name is not None}))
    label_by_name = {name: label for label, name in enumerate(classes)}
    return ImageSet(
        name=container.name,
        location=container.location,
        classes=classes,
        keys=keys,
        labels=np.asarray([-1 if name is None else label_by_name[name] for name in class_names], dtype=np.int64),
        declared_splits=declared,
        store=container.make_store(keys),
        notes=tuple(notes),
    )


def splits_from_folders(keys: list[str]) -> list[str]:
    """Return the split of each image, according to its train/val/test folder; "" if the folder has another name."""
    parts = [_split_from_folder(key) for key in keys]
    has_other_folders = any("/" in key and not part for key, part in zip(keys, parts, strict=True))
    is_nested = any(key.count("/") >= 2 for key, part in zip(keys, parts, strict=True) if part)
    # Without subfolders, and beside other folders, the train/val/test folders are taken to be classes.
    return [""] * len(keys) if has_other_folders and not is_nested else parts


def _split_from_folder(key: str) -> str:
    folder, slash, _ = key.partition("/")
    return PART_BY_WORD.get(folder.lower(), "") if slash else ""


def find_images(
    root: Path, other_suffixes: Counter[str] | None = None, links: dict[str, str] | None = None
) -> list[str]:
    """Return the sorted paths of all images below `root`, relative to `root` and with forward slashes.

    Hidden files and folders are left out. Links to folders are followed, but each folder is read only once. Two
    arguments are extended: `other_suffixes` counts the files that are not images by lower-case suffix, and `links` maps
    the second path of each folder that is reached twice to the first path.
    """
    images: list[str] = []
    for path in find_files(root, links):
        if path.lower().endswith(IMAGE_SUFFIXES):
            images.append(path)
        elif other_suffixes is not None:
            other_suffixes[os.path.splitext(path)[1].lower()] += 1
    return sorted(images)


def find_files(root: Path, links: dict[str, str] | None = None) -> Iterator[str]:
    """Yield the relative paths of all files below `root`, in no fixed order; see `find_images`."""
    visited: dict[str, str] = {}
    for folder, subfolders, files in os.walk(root, followlinks=True, onerror=_refuse_unreadable):
        real_path, prefix = os.path.realpath(folder), Path(folder).relative_to(root).as_posix()
        if real_path in visited:
            subfolders.clear()
            first_path = visited[real_path]
            if links is not None and first_path != "." and not f"{prefix}/".startswith(f"{first_path}/"):
                links[prefix] = first_path
            continue
        visited[real_path] = prefix
        subfolders[:] = sorted(name for name in subfolders if not is_ignored(name))
        yield from (name if prefix == "." else f"{prefix}/{name}" for name in files if not is_ignored(name))


def require_readable(folder: Path) -> None:
    """Raise a UserError if a folder has unreadable subfolders, which glob patterns would silently skip."""
    for subfolder in folder.iterdir():
        if not is_ignored(subfolder.name) and subfolder.is_dir() and not os.access(subfolder, os.R_OK | os.X_OK):
            _refuse_unreadable(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(subfolder)))


def _refuse_unreadable(problem: OSError) -> None:
    if not isinstance(problem, FileNotFoundError):  # a missing folder was removed during the search
        reason = (problem.strerror or "").lower()
        raise UserError(
            f"the folder {problem.filename} cannot be read ({reason}): change its permissions, or move the folder."
        )


def is_ignored(name: str) -> bool:
    """Return whether a file or folder is hidden or a system file."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def _note_on_other_files(counts: Counter[str]) -> list[str]:
    """Return a list with a note on the files that are not images, given their counts by suffix, or []."""
    if not counts:
        return []
    # Equally frequent suffixes are sorted, since folders are searched in no fixed order.
    ranked = sorted(counts.items(), key=lambda item: (-item[1], not item[0], item[0]))
    shown_counts = [f"{count} {suffix or 'without a suffix'}" for suffix, count in ranked[:_MAX_SUFFIXES_SHOWN]]
    shown_counts += ["..."] if len(counts) > _MAX_SUFFIXES_SHOWN else []
    total = counts.total()
    note = (
        f"{counted(total, 'file')} {was_or_were(total)} skipped for having no known image format "
        f"({', '.join(shown_counts)})"
    )
    commands = sorted({command for suffix in counts if (command := install_command(suffix))})
    return [f"{note}; to read them: {', '.join(commands)}" if commands else note]


def _left_out_text(keys: list[str]) -> str:
    return f"{was_or_were(len(keys))} left out ({keys[0]}{', ...' if len(keys) > 1 else ''})"


def _quote_few(names: list[str]) -> str:
    quoted = ", ".join(f"'{name}'" for name in names[:3])
    return quoted + (f" and {len(names) - 3} more" if len(names) > 3 else "")
