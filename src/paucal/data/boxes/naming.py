"""Find the image that a name in an annotation file refers to; names may come from other machines and folders."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

from paucal.data.boxes.annotations import AnnotatedImage, add_image
from paucal.data.boxes.tree import Tree
from paucal.data.sources.folder import IMAGE_FOLDERS
from paucal.data.sources.locating import UPLOADED
from paucal.data.sources.suffixes import IMAGE_SUFFIXES
from paucal.data.splits.part_names import part_fits, part_of_folders
from paucal.types import UserError
from paucal.wording import counted

# Usual names of folders with annotation files, in lower case.
LABEL_FOLDERS = (
    *("annotations", "annotation", "labels", "label", "anns", "ann", "xml", "xmls", "json", "jsons", "txt", "bboxes"),
    *("boxes", "gt", "ground_truth", "coco", "voc", "yolo", "labelme", "cvat", "via"),
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/]*")
_DRIVE = re.compile(r"[A-Za-z]:(?=[\\/])")


class MissingImage(UserError):
    """An image that an annotation file names does not exist."""


class Match(NamedTuple):
    """A file that a name may refer to, and the folder `base` that the name is then relative to."""

    path: str
    base: str


def normalise_name(name: str) -> str:
    """Return the form of a name for comparisons: case, Unicode normalization and outer spaces do not matter."""
    return unicodedata.normalize("NFC", name).casefold().strip()


def split_path(name: str) -> tuple[str, ...]:
    r"""Return the folders and the file name of a path or URL, in the notation of any operating system.

    Example:
        >>> split_path(r"C:\set\a b.jpg"), split_path("https://host/set/a%20b.jpg?raw=1"), split_path("../x/./a.jpg")
        (('set', 'a b.jpg'), ('set', 'a b.jpg'), ('x', 'a.jpg'))
    """
    if url := _URL.match(name):
        name = unquote(re.split("[?#]", name[url.end() :])[0])
    drive = _DRIVE.match(name)
    path = name[drive.end() :] if drive else name
    return tuple(part for part in path.replace("\\", "/").split("/") if part not in ("", ".", ".."))


def explain_foreign_path(name: str) -> str:
    """Return why a name is not a path within a folder; "" for a valid path."""
    if _URL.match(name):
        return "an address on the network: fetch its images, and put them into the folder"
    path = name.replace("\\", "/")
    if path.startswith("/") or _DRIVE.match(name) or ".." in path.split("/") or "\0" in name:
        return "a path out of its folder, and no such image is in it: add the image, or give names within the folder"
    return ""


class ImageNames:
    """Finds files by the names that annotation files give them."""

    def __init__(self, paths: Collection[str], tree: Tree) -> None:
        self._tree = tree
        self._folders = {part for path in tree.files for part in path.split("/")[:-1]}
        self._by_name: dict[str, list[str]] = {}
        self._by_stem: dict[str, list[str]] = {}
        self._in_folder: Counter[str] = Counter()
        self._image_folders = {part for path in paths for part in path.split("/")[:-1]}
        self._folders_of: dict[str, set[str]] = {}
        for path in paths:
            name = path.rpartition("/")[2]
            self._by_name.setdefault(normalise_name(name), []).append(path)
            self._by_stem.setdefault(normalise_name(PurePosixPath(name).stem), []).append(path)
            self._in_folder[path.rpartition("/")[0]] += 1

    def matches(self, name: str, by_stem: bool = False) -> list[Match]:
        """Return the files that a name may refer to: of the files with this name, those with most of its folders.

        A file in another folder of the set is excluded: "train/1.jpg" is not "val/1.jpg". Label Studio's prefix of an
        upload may be missing, and with `by_stem` the suffix may differ.
        """
        *folders_of_name, last = split_path(name) or ("",)
        paths = self._files_of_name(last, by_stem) or self._files_of_name(UPLOADED.sub("", last, count=1), by_stem)
        exact = [path for path in paths if path.rpartition("/")[2] == last]
        best, matches = -1, list[Match]()
        for path in exact or paths:
            folders = path.split("/")[:-1]
            pairs = zip(reversed(folders_of_name), reversed(folders), strict=False)
            shared = next((index for index, (a, b) in enumerate(pairs) if normalise_name(a) != normalise_name(b)), None)
            if shared is not None and folders_of_name[-1 - shared] in self._folders:
                continue
            shared = min(len(folders_of_name), len(folders)) if shared is None else shared
            if shared >= best:
                matches = [] if shared > best else matches
                best = shared
                matches.append(Match(path, "/".join(folders[: len(folders) - shared])))
        return matches

    def _files_of_name(self, name: str, by_stem: bool) -> list[str]:
        stem = PurePosixPath(name).stem if name.lower().endswith(IMAGE_SUFFIXES) else name
        return self._by_stem.get(normalise_name(stem), []) if by_stem else self._by_name.get(normalise_name(name), [])

    def find_images(self, names: Sequence[str], file: str, part: str) -> list[str | None]:
        """Return the image for each name in an annotation file; None for a missing image.

        The images lie in one folder, or also in other folders if this file names at least half of the images there: a
        single image elsewhere is not used in place of a missing image. A name without a suffix matches any suffix.
        `part` is the part of the file's images, or "" if it is unknown.

        Raises:
            UserError: The images may come from any of several folders.
        """
        matches_of = [self.matches(name, by_stem=not name.lower().endswith(IMAGE_SUFFIXES)) for name in names]
        main_base = self._main_base(matches_of, file, part)
        paths: list[str | None] = []
        for matches in matches_of:
            paths_in_main = [match.path for match in matches if match.base == main_base]
            candidates = paths_in_main or [match.path for match in matches if part_fits(match.path, part)]
            paths.append(candidates[0] if len(candidates) == 1 else None)
        n_named = Counter(path.rpartition("/")[0] for path in paths if path is not None)
        for index, (path, matches) in enumerate(zip(paths, matches_of, strict=True)):
            if path is not None and all(match.base != main_base for match in matches):
                folder = path.rpartition("/")[0]
                if 2 * n_named[folder] < self._in_folder[folder]:
                    paths[index] = None
        return paths

    def _main_base(self, matches_of: Sequence[Sequence[Match]], file: str, part: str) -> str | None:
        """Return the base folder of the names: the nearest folder to the file with at least half of the images."""
        counts = Counter(match.base for matches in matches_of for match in matches)
        if not counts:
            return None
        fitting_counts = {base: count for base, count in counts.items() if part_fits(f"{base}/", part)} or counts
        # Half of the images, or the most of any folder.
        enough = min(max(fitting_counts.values()), -(-sum(map(bool, matches_of)) // 2))
        ranked = sorted(
            (_folder_distance(base, file, part), len(plain_folders(base)), base)
            for base, count in fitting_counts.items()
            if count >= enough
        )
        rivals = [base for *rank, base in ranked if tuple(rank) == ranked[0][:2]]
        if any(len([match for match in matches if match.base in rivals]) > 1 for matches in matches_of):
            raise UserError(
                f"the images of {self._tree.place_of(file)!r} are in {rivals[0]!r} and in {rivals[1]!r}: include "
                "the folder in their names, or move one of the folders away."
            )
        return ranked[0][2]

    def find_described_image(self, file: str, named: Sequence[str]) -> str | None:
        """Return the image of an annotation file that describes one image; None if it is missing.

        Images in the same or the parallel folder are preferred. Among those, an image that the file names, the
        likeliest name first, is preferred to one with the file's own stem.
        """
        stem = PurePosixPath(file).stem
        names = [name for name in named if name]
        candidates = [*((name, False) for name in names), *((name, True) for name in names), (stem, True)]
        part = part_of_folders(file)
        for is_near in (True, False):
            for name, by_stem in candidates:
                paths = [match.path for match in self.matches(name, by_stem) if part_fits(match.path, part)]
                paths = [path for path in paths if not self._has_other_folders(path, file)]
                ranks = {path: _folder_rank(path, file) for path in paths}
                ranked = [path for path in paths if (ranks[path] <= 1) == is_near]
                best = [path for path in ranked if ranks[path] == min(ranks[path] for path in ranked)]
                if len(best) > 1:
                    raise UserError(
                        f"{self._tree.place_of(file)!r} may describe {best[0]!r} or {best[1]!r}: remove one of the two "
                        "images, or give the correct name in the file."
                    )
                if best:
                    return best[0]
        return None

    def _has_other_folders(self, path: str, file: str) -> bool:
        """Return whether an image and an annotation file lie in different folders of the set ("cam1" and "cam2")."""
        ending = PurePosixPath(file).suffix
        if ending not in self._folders_of:
            namesakes = [other for other in self._tree.files if other.endswith(ending)]
            self._folders_of[ending] = {part for other in namesakes for part in other.split("/")[:-1]}
        image_folders = set(plain_folders(path.rpartition("/")[0]))
        file_folders = set(plain_folders(file.rpartition("/")[0]))
        return bool(
            (file_folders - image_folders) & self._image_folders
            or (image_folders - file_folders) & self._folders_of[ending]
        )


def _folder_rank(path: str, file: str) -> int:
    """Return 0 for an image beside its annotation file, 1 for one in the parallel folder, 2 elsewhere."""
    image_folder, file_folder = path.rpartition("/")[0], file.rpartition("/")[0]
    return 0 if image_folder == file_folder else 1 if plain_folders(image_folder) == plain_folders(file_folder) else 2


def _folder_distance(base: str, file: str, part: str) -> int:
    """Return a rank of a folder as the location of an annotation file's images; 0 is the likeliest."""
    file_folder, stem = file.rpartition("/")[0], normalise_name(PurePosixPath(file).stem)
    parent, name = file_folder.rpartition("/")[0], normalise_name(base.rpartition("/")[2])
    if base == file_folder:
        return 0
    if name in IMAGE_FOLDERS and base.rpartition("/")[0] == file_folder:
        return 1
    if name and (stem == name or stem.endswith((f"_{name}", f"-{name}"))):  # train2017 of instances_train2017
        return 2
    if part and part_of_folders(f"{base}/") == part:
        return 3
    return 4 if base == parent or (name in IMAGE_FOLDERS and base.rpartition("/")[0] == parent) else 5


def plain_folders(folder: str) -> tuple[str, ...]:
    """Return the folders of a path, except folders named only after a kind of file, such as "images"."""
    kinds = (*IMAGE_FOLDERS, *LABEL_FOLDERS)
    return tuple(part for part in folder.split("/") if part and part.lower() not in kinds)


def assign_images(tree: Tree, named: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], list[str]]:
    """Return the image that each annotation file describes, and notes on names that were not used.

    A file describes the image that it names. If several files name one image, as in sets of renamed files, each of
    them describes the image with its own stem instead, unless another file describes that image.

    Args:
        tree: Files of the set.
        named: Names that each annotation file gives its image, the likeliest first.
    """
    names = ImageNames(tree.images, tree)
    described = ((file, names.find_described_image(file, image_names)) for file, image_names in named.items())
    keys = {file: key for file, key in described if key is not None}
    files_of: dict[str, list[str]] = {}
    for file, key in keys.items():
        files_of.setdefault(key, []).append(file)
    corrected = []
    for file in [file for files in files_of.values() if len(files) > 1 for file in files]:
        own_image = names.find_described_image(file, ())
        if own_image is not None and own_image not in keys.values():
            keys[file] = own_image
            corrected.append(file)
    images: dict[str, AnnotatedImage] = {}
    for file, key in keys.items():
        add_image(images, AnnotatedImage(key, source=file), tree.shown)
    respelt = [file for file, key in keys.items() if file not in corrected and _has_other_suffix(named[file], key)]
    notes = []
    for files, problem, image in (
        (corrected, "the image of another file", "the image with its own name"),
        (respelt, "an image with another suffix", keys[respelt[0]] if respelt else ""),
    ):
        if files:
            subject = counted(len(files), "annotation file names", "annotation files name")
            notes.append(f"{subject} {problem}, such as {files[0]}: {image} was used")
    return keys, notes


def assign_keys(images: Iterable[AnnotatedImage], named: Mapping[str, Sequence[str]], tree: Tree) -> list[str]:
    """Set the keys of images with one annotation file each, their `source`, and return notes; see `assign_images`."""
    keys, notes = assign_images(tree, named)
    for file, image_names in named.items():
        if file not in keys:
            name = next((split_path(path)[-1] for path in image_names if split_path(path)), file.rpartition("/")[2])
            raise MissingImage(
                f"{tree.place_of(file)!r} describes {name!r}, but there is no such image beside it or in a folder such "
                "as JPEGImages or images: add it."
            )
    for image in images:
        image.key = keys[image.source]
    return notes


def _has_other_suffix(named: Sequence[str], key: str) -> bool:
    """Return whether there are names with an image suffix and none of them is this image's."""
    file_names = [split_path(name)[-1] for name in named if split_path(name)]
    names = [normalise_name(name) for name in file_names if name.lower().endswith(IMAGE_SUFFIXES)]
    return bool(names) and normalise_name(key.rpartition("/")[2]) not in names
