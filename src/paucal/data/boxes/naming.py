"""Finds the images that annotation files name, even if the names were written on another machine."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

from paucal.data.boxes.annotations import AnnotatedImage, add_image
from paucal.data.boxes.tree import Tree
from paucal.data.sources.folder import IMAGE_FOLDERS
from paucal.data.sources.locating import UPLOAD_PREFIX, fold_name
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import fits_split, split_in_folders
from paucal.types import UserError
from paucal.wording import counted

# Common names of folders with annotation files, in lower case.
LABEL_FOLDERS = (
    *("annotations", "annotation", "labels", "label", "anns", "ann", "xml", "xmls", "json", "jsons", "txt", "bboxes"),
    *("boxes", "gt", "ground_truth", "coco", "voc", "yolo", "labelme", "cvat", "via"),
)
_URL_START = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/]*")
_DRIVE_LETTER = re.compile(r"[A-Za-z]:(?=[\\/])")


class MissingImage(UserError):
    """Error for an image that an annotation file names but that does not exist."""


def missing_image_error(tree: Tree, file: str, name: str) -> MissingImage:
    """Return the error for an image that the annotation file `file` describes, but that does not exist."""
    return MissingImage(
        f"{tree.shown_path(file)!r} describes {name[:120]!r}, but there is no such image in {tree.shown_root!r}: add "
        "the image, or give the folder that contains images and annotations as DATA."
    )


class Match(NamedTuple):
    """A file that a name in an annotation file may refer to, and the folder `base` to which the name is relative."""

    path: str
    base: str


def normalise_name(name: str) -> str:
    """Return a key that is equal for names that differ only in case, Unicode form or spaces at the ends."""
    return fold_name(name).strip()


def split_path(name: str) -> tuple[str, ...]:
    r"""Split a path or URL, in the notation of any operating system, into its folders and its file name.

    Example:
        >>> split_path(r"C:\set\a b.jpg"), split_path("https://host/set/a%20b.jpg?raw=1"), split_path("../x/./a.jpg")
        (('set', 'a b.jpg'), ('set', 'a b.jpg'), ('x', 'a.jpg'))
    """
    if url := _URL_START.match(name):
        name = unquote(re.split("[?#]", name[url.end() :])[0])
    drive = _DRIVE_LETTER.match(name)
    path = name[drive.end() :] if drive else name
    return tuple(step for step in path.replace("\\", "/").split("/") if step not in ("", ".", ".."))


def explain_foreign_path(name: str) -> str:
    """Return why a name is not a relative path inside the image folder, with advice; "" for such a path."""
    if _URL_START.match(name):
        return "a URL: download the images, and put them into the folder"
    path = name.replace("\\", "/")
    if path.startswith("/") or _DRIVE_LETTER.match(name) or ".." in path.split("/") or "\0" in name:
        return (
            "a path out of the data folder, which has no such image: add the image, or give paths inside the data "
            "folder"
        )
    return ""


class ImageFinder:
    """Finds files at given paths in a tree, usually images, by the names that annotation files give."""

    def __init__(self, paths: Collection[str], tree: Tree) -> None:
        self._tree = tree
        self._folders = {folder for path in tree.files for folder in path.split("/")[:-1]}
        self._by_name: dict[str, list[str]] = {}
        self._by_stem: dict[str, list[str]] = {}
        self._files_per_folder: Counter[str] = Counter()
        self._image_folders = {folder for path in paths for folder in path.split("/")[:-1]}
        self._folders_by_suffix: dict[str, set[str]] = {}
        for path in paths:
            name = path.rpartition("/")[2]
            self._by_name.setdefault(normalise_name(name), []).append(path)
            self._by_stem.setdefault(normalise_name(PurePosixPath(name).stem), []).append(path)
            self._files_per_folder[path.rpartition("/")[0]] += 1

    def find_matches(self, name: str, by_stem: bool = False) -> list[Match]:
        """Return the files with this name whose paths share the most folders with the name, counted from the end.

        A file is excluded if it is in a different folder of the data set: "train/1.jpg" does not match "val/1.jpg". If
        no file has the name, the prefix that Label Studio adds to the names of uploads is removed. With `by_stem`, the
        suffixes may differ.
        """
        *folders_of_name, last = split_path(name) or ("",)
        paths = self._files_of_name(last, by_stem) or self._files_of_name(UPLOAD_PREFIX.sub("", last, count=1), by_stem)
        exact = [path for path in paths if path.rpartition("/")[2] == last]
        best_count, matches = -1, list[Match]()
        for path in exact or paths:
            folders = path.split("/")[:-1]
            pairs = zip(reversed(folders_of_name), reversed(folders), strict=False)
            n_shared = next((n for n, (a, b) in enumerate(pairs) if normalise_name(a) != normalise_name(b)), None)
            if n_shared is not None and folders_of_name[-1 - n_shared] in self._folders:
                continue
            n_shared = min(len(folders_of_name), len(folders)) if n_shared is None else n_shared
            if n_shared >= best_count:
                matches = [] if n_shared > best_count else matches
                best_count = n_shared
                matches.append(Match(path, "/".join(folders[: len(folders) - n_shared])))
        return matches

    def _files_of_name(self, name: str, by_stem: bool) -> list[str]:
        stem = PurePosixPath(name).stem if name.lower().endswith(IMAGE_SUFFIXES) else name
        return self._by_stem.get(normalise_name(stem), []) if by_stem else self._by_name.get(normalise_name(name), [])

    def find_images(self, names: Sequence[str], file: str, part: str) -> list[str | None]:
        """Return the path of the image for each name in an annotation file; None for a missing image.

        Images are searched for in the main folder that names are relative to. Images in another folder are used only if
        the file lists at least half of the images in that folder, so that a single image elsewhere does not replace a
        missing image. A name without a suffix matches an image with any suffix. `part` is the split that the file
        describes; "" if unknown.
        """
        matches_per_name = [
            self.find_matches(name, by_stem=not name.lower().endswith(IMAGE_SUFFIXES)) for name in names
        ]
        main_base = self._most_common_base_folder(matches_per_name, file, part)
        paths: list[str | None] = []
        for matches in matches_per_name:
            paths_in_main = [match.path for match in matches if match.base == main_base]
            candidates = paths_in_main or [match.path for match in matches if fits_split(match.path, part)]
            paths.append(candidates[0] if len(candidates) == 1 else None)
        n_named = Counter(path.rpartition("/")[0] for path in paths if path is not None)
        for index, (path, matches) in enumerate(zip(paths, matches_per_name, strict=True)):
            if path is not None and all(match.base != main_base for match in matches):
                folder = path.rpartition("/")[0]
                if 2 * n_named[folder] < self._files_per_folder[folder]:
                    paths[index] = None
        return paths

    def _most_common_base_folder(self, matches_per_name: Sequence[Sequence[Match]], file: str, part: str) -> str | None:
        """Return the folder that the names are most likely relative to; None if no name matches an image.

        This is the folder nearest to `file` among the folders in which at least half of the names match an image.
        """
        counts = Counter(match.base for matches in matches_per_name for match in matches)
        if not counts:
            return None
        fitting_counts = {base: count for base, count in counts.items() if fits_split(f"{base}/", part)} or counts
        # Half of the names that match an image, or fewer if no folder has so many.
        min_count = min(max(fitting_counts.values()), -(-sum(map(bool, matches_per_name)) // 2))
        ranked = sorted(
            (_base_folder_penalty(base, file, part), len(plain_folders(base)), base)
            for base, count in fitting_counts.items()
            if count >= min_count
        )
        tied_bases = [base for *rank, base in ranked if tuple(rank) == ranked[0][:2]]
        if any(len([match for match in matches if match.base in tied_bases]) > 1 for matches in matches_per_name):
            raise UserError(
                f"the images of {self._tree.shown_path(file)!r} are in {tied_bases[0]!r} and in {tied_bases[1]!r}: "
                "include the folder in the names of the images, or move one of the folders away."
            )
        return ranked[0][2]

    def find_described_image(self, file: str, stated_names: Sequence[str]) -> str | None:
        """Return the path of the image that an annotation file describes; None if there is no such image.

        Images beside the file or in the parallel folder (`images/` for `labels/`) are preferred. Among these images, an
        image that the file names (the most likely name first) is preferred to an image with the stem of the file.
        """
        stem, part, file_folder = PurePosixPath(file).stem, split_in_folders(file), file.rpartition("/")[0]
        names = [name for name in stated_names if name]
        candidates = [*((name, False) for name in names), *((name, True) for name in names), (stem, True)]
        for are_near in (True, False):
            for name, by_stem in candidates:
                paths = [match.path for match in self.find_matches(name, by_stem) if fits_split(match.path, part)]
                paths = [path for path in paths if not self._has_other_folders(path, file)]
                folders = {path: path.rpartition("/")[0] for path in paths}
                near = [path for path in paths if plain_folders(folders[path]) == plain_folders(file_folder)]
                beside = [path for path in near if folders[path] == file_folder]
                best = (beside or near) if are_near else [path for path in paths if path not in near]
                if len(best) > 1:
                    raise UserError(
                        f"{self._tree.shown_path(file)!r} may describe {best[0]!r} or {best[1]!r}: remove one of "
                        "the two images, or give the correct name in the file."
                    )
                if best:
                    return best[0]
        return None

    def _has_other_folders(self, path: str, file: str) -> bool:
        """Return whether the folders of an image and of an annotation file have different names ("cam1" and "cam2").

        Folders for one type of file, such as "images" and "labels", may have different names.
        """
        suffix = PurePosixPath(file).suffix
        if suffix not in self._folders_by_suffix:
            files = [other for other in self._tree.files if other.endswith(suffix)]
            self._folders_by_suffix[suffix] = {folder for other in files for folder in other.split("/")[:-1]}
        image_folders = set(plain_folders(path.rpartition("/")[0]))
        file_folders = set(plain_folders(file.rpartition("/")[0]))
        if (file_folders - image_folders) & self._image_folders:
            return True
        return bool((image_folders - file_folders) & self._folders_by_suffix[suffix])


def _base_folder_penalty(base: str, file: str, part: str) -> int:
    """Return a penalty for reading the names in an annotation file relative to `base`: 0 (likely) to 5 (unlikely)."""
    file_folder, stem = file.rpartition("/")[0], normalise_name(PurePosixPath(file).stem)
    parent, name = file_folder.rpartition("/")[0], normalise_name(base.rpartition("/")[2])
    if base == file_folder:
        return 0
    if name in IMAGE_FOLDERS and base.rpartition("/")[0] == file_folder:
        return 1
    if name and (stem == name or stem.endswith((f"_{name}", f"-{name}"))):  # instances_train2017.json and train2017/
        return 2
    if part and split_in_folders(f"{base}/") == part:
        return 3
    return 4 if base == parent or (name in IMAGE_FOLDERS and base.rpartition("/")[0] == parent) else 5


def plain_folders(folder: str) -> tuple[str, ...]:
    """Return the names of the folders in a path, except common names for one type of file, such as "images"."""
    usual_names = (*IMAGE_FOLDERS, *LABEL_FOLDERS)
    return tuple(name for name in folder.split("/") if name and name.lower() not in usual_names)


def assign_images(tree: Tree, stated_names: Mapping[str, Sequence[str]], notes: list[str]) -> dict[str, str]:
    """Return the path of the image that each annotation file describes; append notes on unused names to `notes`.

    A file describes the image that it names. If several files name the same image, as in data sets whose files were
    renamed, each file describes the image with the stem of the file, unless another file describes that image.
    """
    finder = ImageFinder(tree.images, tree)
    images_by_file = {file: finder.find_described_image(file, names) for file, names in stated_names.items()}
    keys = {file: key for file, key in images_by_file.items() if key is not None}
    files_by_image: dict[str, list[str]] = {}
    for file, key in keys.items():
        files_by_image.setdefault(key, []).append(file)
    corrected_files = []
    for file in [file for files in files_by_image.values() if len(files) > 1 for file in files]:
        image_by_stem = finder.find_described_image(file, ())
        if image_by_stem is not None and image_by_stem not in keys.values():
            keys[file] = image_by_stem
            corrected_files.append(file)
    images: dict[str, AnnotatedImage] = {}
    for file, key in keys.items():
        add_image(images, AnnotatedImage(key, source=file), tree.shown_root)
    images_with_other_suffix: dict[str, str] = {}
    for file, key in keys.items():
        file_names = [split_path(name)[-1] for name in stated_names[file] if split_path(name)]
        image_names = [normalise_name(name) for name in file_names if name.lower().endswith(IMAGE_SUFFIXES)]
        if image_names and normalise_name(key.rpartition("/")[2]) not in image_names and file not in corrected_files:
            images_with_other_suffix[file] = key
    other_suffix_image = next(iter(images_with_other_suffix.values()), "")
    for files, problem, image in (
        (corrected_files, "the image of another file", "the image with the name of the annotation file"),
        ([*images_with_other_suffix], "an image with another suffix", other_suffix_image),
    ):
        if files:
            subject = counted(len(files), "annotation file names", "annotation files name")
            notes.append(f"{subject} {problem}, such as {files[0]}: {image} was used")
    return keys


def assign_keys(
    images: Iterable[AnnotatedImage], stated_names: Mapping[str, Sequence[str]], tree: Tree, notes: list[str]
) -> None:
    """Set the key of each image to the path that `assign_images` finds for the image's `source`."""
    keys = assign_images(tree, stated_names, notes)
    for file, image_names in stated_names.items():
        if file not in keys:
            name = next((split_path(path)[-1] for path in image_names if split_path(path)), file.rpartition("/")[2])
            raise MissingImage(
                f"{tree.shown_path(file)!r} describes {name!r}, but there is no such image beside this file or in a "
                "folder such as JPEGImages or images: add the image."
            )
    for image in images:
        image.key = keys[image.source]
