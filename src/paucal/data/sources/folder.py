"""Folders of image files: class folders, class folders below train/val/test, or any nested folder."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.data.sources.suffixes import IMAGE_SUFFIXES, advice
from paucal.data.splits.part_names import PARTS
from paucal.data.stores import FileStore, Store
from paucal.types import NoLabelsError, UserError
from paucal.wording import counted, was

IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "photos", "pictures", "pics", "frames")
_KINDS_SHOWN = 5
# Created by macOS in archives, by network storage beside photos, by Windows and Linux on disks, and by Python.
_SYSTEM_FOLDERS = {
    *("__macosx", "@eadir", "#recycle", "@recycle", "#snapshot", "$recycle.bin", "recycler"),
    *("system volume information", "lost+found", "__pycache__"),
}


@dataclass(frozen=True)
class Place:
    """A container of images that are laid out as folders: a folder, or an archive of one.

    Attributes:
        name: Name for messages.
        location: Location as in `ImageSet.location`.
        store: Function that makes the store of the images with given keys.
        subfolders: Function that takes a folder relative to the root ("" for the root) and lists its subfolders.
    """

    name: str
    location: str
    store: Callable[[list[str]], Store]
    subfolders: Callable[[str], list[str]]


def open_folder(root: Path, labelled: bool = True) -> ImageSet:
    """Open a folder of images.

    If `labelled`, `root` holds class folders, or `train`, `val` (also `valid`, `validation`, `dev`) and `test`
    (also `testing`) in any case with class folders inside. Images may be nested deeper below a class folder.
    Classes are numbered in lexicographic order over the union of all parts, so labels do not depend on classes that are
    missing in a part. Otherwise all images below `root` are read, still with their parts.

    Raises:
        UserError: There are no images, a part without class folders, an empty class folder, or other folders beside the
            parts.
    """
    passed_over: Counter[str] = Counter()
    links: dict[str, str] = {}
    keys = find_images(root, passed_over, links)
    real_root = root.resolve()
    place = Place(
        name=real_root.name,
        location=str(real_root),
        store=lambda keys: FileStore(real_root, keys),
        subfolders=lambda subfolder: subfolders_of(root / subfolder),
    )
    images = open_place(place, keys, passed_over, labelled, shown=root)
    notes = (f"the folders {link} and {folder} are the same, and were read once" for link, folder in links.items())
    return replace(images, notes=(*images.notes, *sorted(notes)))


def subfolders_of(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden and system folders."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not is_ignored(entry.name))


def open_place(
    place: Place, keys: list[str], passed_over: Counter[str], labelled: bool = True, shown: Path | None = None
) -> ImageSet:
    """Open images that are laid out as folders, see `open_folder`, from the sorted relative paths of all images.

    Files that are not images are counted by suffix in `passed_over`. Messages name the place as it is `shown`, or else
    by its location.
    """
    root = Path(place.location) if shown is None else shown
    notes = _note_on_passed_over(passed_over)
    if not keys:
        other_files = f"; {notes[0]}" if notes else ""
        raise UserError(
            f"there are no images in {root} (expected files ending in {', '.join(IMAGE_SUFFIXES)}){other_files}"
        )
    tops = place.subfolders("")
    if not labelled:
        return _image_set(place, keys, [None] * len(keys), parts_of(keys), notes)
    loose = [key for key in keys if "/" not in key]
    if loose and tops:
        notes.append(f"{counted(len(loose), 'image')} beside the folders {_left_out(loose)}")
    keys = [key for key in keys if "/" in key]
    parts = [top for top in tops if top.lower() in PARTS]
    if _has_parts(root, tops, parts, keys):
        return _open_parts(place, root, parts, keys, notes)
    if len(parts) > 1:
        notes.append(f"{_quote_few(parts)} have no class folders, so they are read as classes")
    if not tops:
        raise NoLabelsError(
            f"{root} has images but no class folders; expected {root.name}/<class>/<image> "
            "(images without labels are for paucal predict)"
        )
    names = [key.split("/")[0] for key in keys]
    _refuse_empty_classes(root, tops, names)
    return _image_set(place, keys, names, [""] * len(keys), notes)


def _has_parts(root: Path, tops: list[str], parts: list[str], keys: list[str]) -> bool:
    """Return whether folders are the parts of a set, not classes that happen to be called "train" or "test"."""
    if not parts:
        return False
    filled = {key.split("/")[0] for key in keys}
    other_folders = [top for top in tops if top not in parts and top in filled]
    nested = any(key.count("/") >= 2 for key in keys if key.split("/")[0] in parts)
    if other_folders and nested:
        raise UserError(
            f"{root} has {_quote_few(other_folders)} with images beside {_quote_few(parts)}; move them below one of "
            "those folders or out of the way"
        )
    return not other_folders


def _open_parts(place: Place, root: Path, parts: list[str], keys: list[str], notes: list[str]) -> ImageSet:
    repeated = [part for part, n in Counter(PARTS[top.lower()] for top in parts).items() if n > 1]
    if repeated:
        raise UserError(f"{root} has more than one folder for {repeated[0]} ({_quote_few(parts)}); keep one of them")
    folders: list[str] = []
    for top in parts:
        class_folders = place.subfolders(top)
        if not class_folders:
            raise (UserError if any(map(place.subfolders, parts)) else NoLabelsError)(
                f"{root / top} has no class folders inside; expected {top}/<class>/<image> "
                "(images without labels are for paucal predict)"
            )
        folders.extend(f"{top}/{name}" for name in class_folders)
    flat = [key for key in keys if key.count("/") == 1]
    if flat:
        notes.append(f"{counted(len(flat), 'image')} outside of class folders {_left_out(flat)}")
    keys = [key for key in keys if key.count("/") >= 2]
    names = [key.split("/")[1] for key in keys]
    _refuse_empty_classes(root, folders, names)
    return _image_set(place, keys, names, [_part_of(key) for key in keys], notes)


def _refuse_empty_classes(root: Path, folders: list[str], names: list[str]) -> None:
    """Refuse class folders (given as paths) that hold no images: their names are not among the image classes."""
    empty = sorted(folder for folder in folders if folder.rpartition("/")[2] not in names)
    for folder in empty:
        others = (other for other in folders if other != folder)
        if twin := next((other for other in others if _is_same_file(root / folder, root / other)), ""):
            raise UserError(
                f"the class folders '{folder}' and '{twin}' of {root} are the same folder: remove the link."
            )
    if empty:
        raise UserError(f"class folder {_quote_few(empty)} in {root} has no images; add some or remove the folder")


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:  # folders of an archive
        return False


def _image_set(
    place: Place, keys: list[str], names: list[str] | list[None], declared: list[str], notes: list[str]
) -> ImageSet:
    classes = tuple(sorted({name for name in names if name is not None}))
    numbers = {name: label for label, name in enumerate(classes)}
    return ImageSet(
        name=place.name,
        location=place.location,
        classes=classes,
        keys=keys,
        labels=np.asarray([-1 if name is None else numbers[name] for name in names], dtype=np.int64),
        declared=declared,
        store=place.store(keys),
        notes=tuple(notes),
    )


def parts_of(keys: list[str]) -> list[str]:
    """Return the train/val/test folder of each image; "" for all if these folders look like classes."""
    parts = [_part_of(key) for key in keys]
    has_other_folders = any("/" in key and not part for key, part in zip(keys, parts, strict=True))
    nested = any(key.count("/") >= 2 for key, part in zip(keys, parts, strict=True) if part)
    return [""] * len(keys) if has_other_folders and not nested else parts


def _part_of(key: str) -> str:
    folder, slash, _ = key.partition("/")
    return PARTS.get(folder.lower(), "") if slash else ""


def find_images(root: Path, passed_over: Counter[str] | None = None, links: dict[str, str] | None = None) -> list[str]:
    """Return the paths of all images below `root`, relative, with forward slashes, sorted.

    Hidden files and folders are left out; links to folders are followed, but no folder is entered twice.

    Args:
        root: Folder to search.
        passed_over: Counter to which the files that are not images are added, by lower-case suffix.
        links: Dictionary to which folders reached a second time are added, each with its other name.
    """
    images: list[str] = []
    for path in find_files(root, links):
        if path.lower().endswith(IMAGE_SUFFIXES):
            images.append(path)
        elif passed_over is not None:
            passed_over[os.path.splitext(path)[1].lower()] += 1
    return sorted(images)


def find_files(root: Path, links: dict[str, str] | None = None) -> Iterator[str]:
    """Yield the paths of all files below `root`, see `find_images`."""
    visited: dict[str, str] = {}
    for folder, subfolders, files in os.walk(root, followlinks=True, onerror=_refuse_unreadable):
        real_path, prefix = os.path.realpath(folder), Path(folder).relative_to(root).as_posix()
        if real_path in visited:
            subfolders.clear()
            first = visited[real_path]
            if links is not None and first != "." and not f"{prefix}/".startswith(f"{first}/"):
                links[prefix] = first
            continue
        visited[real_path] = prefix
        subfolders[:] = sorted(name for name in subfolders if not is_ignored(name))
        yield from (name if prefix == "." else f"{prefix}/{name}" for name in files if not is_ignored(name))


def require_readable(folder: Path) -> None:
    """Refuse a folder with unreadable subfolders, which glob patterns would silently skip."""
    for subfolder in folder.iterdir():
        if not is_ignored(subfolder.name) and subfolder.is_dir() and not os.access(subfolder, os.R_OK | os.X_OK):
            _refuse_unreadable(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(subfolder)))


def _refuse_unreadable(problem: OSError) -> None:
    if not isinstance(problem, FileNotFoundError):  # removed in the meantime
        reason = (problem.strerror or "").lower()
        raise UserError(f"the folder {problem.filename} cannot be read ({reason}): change its permissions or move it.")


def is_ignored(name: str) -> bool:
    """Return whether a file or folder is hidden or a system file."""
    return name.startswith(".") or name.lower() in _SYSTEM_FOLDERS


def _note_on_passed_over(counts: Counter[str]) -> list[str]:
    """Return a note on files that are not images, the most frequent kinds first; empty without such files.

    Kinds that are equally common are sorted by name, files without a suffix last: folders are walked in no fixed order.
    """
    if not counts:
        return []
    ranked = sorted(counts.items(), key=lambda kind: (-kind[1], not kind[0], kind[0]))
    kinds = [f"{count} {suffix or 'without a suffix'}" for suffix, count in ranked[:_KINDS_SHOWN]]
    kinds += ["..."] if len(counts) > _KINDS_SHOWN else []
    total = counts.total()
    note = f"{counted(total, 'file')} {was(total)} skipped for having no known image format ({', '.join(kinds)})"
    commands = sorted({command for suffix in counts if (command := advice(suffix))})
    return [f"{note}; to read them: {', '.join(commands)}" if commands else note]


def _left_out(keys: list[str]) -> str:
    return f"{was(len(keys))} left out ({keys[0]}{', ...' if len(keys) > 1 else ''})"


def _quote_few(names: list[str]) -> str:
    quoted = ", ".join(f"'{name}'" for name in names[:3])
    return quoted + (f" and {len(names) - 3} more" if len(names) > 3 else "")
