"""Which image a name in an annotation file means: names come from other machines, other systems and other folders."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

from paucal.data.boxes.tree import Tree
from paucal.data.sources.folder import IMAGE_FOLDERS, IMAGE_SUFFIXES
from paucal.data.splits.part_names import part_fits, part_of_folders
from paucal.types import UserError

# As programs call the folders of annotation files, in any case.
LABEL_FOLDERS = (
    *("annotations", "annotation", "labels", "label", "anns", "ann", "xml", "xmls", "json", "jsons", "txt", "bboxes"),
    *("boxes", "gt", "ground_truth", "coco", "voc", "yolo", "labelme", "cvat", "via"),
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^/]*")
_DRIVE = re.compile(r"[A-Za-z]:(?=[\\/])")


class MissingImage(UserError):
    """An image that an annotation file names, and that is not there."""


class Match(NamedTuple):
    """A file that a name may mean.

    Attributes:
        path: Path of the file.
        base: Folder that the name is relative to.
    """

    path: str
    base: str


def folded(name: str) -> str:
    """Return a name in the form in which names are compared that systems spell differently."""
    return unicodedata.normalize("NFC", name).casefold().strip()


def folders_of(name: str) -> tuple[str, ...]:
    r"""Return the folders and the file name of a path or an address, in the notation of any system.

    Example:
        >>> folders_of(r"C:\set\a b.jpg"), folders_of("https://host/set/a%20b.jpg?raw=1"), folders_of("../x/./a.jpg")
        (('set', 'a b.jpg'), ('set', 'a b.jpg'), ('x', 'a.jpg'))
    """
    if found := _URL.match(name):
        name = unquote(re.split("[?#]", name[found.end() :])[0])
    found = _DRIVE.match(name)
    plain = name[found.end() :] if found else name
    return tuple(part for part in plain.replace("\\", "/").split("/") if part not in ("", ".", ".."))


def kind_of_name(name: str) -> str:
    """Return what to say of a name that is no path within a folder; "" for one that is."""
    if _URL.match(name):
        return "an address on the network: fetch its images, and put them into the folder"
    plain = name.replace("\\", "/")
    if plain.startswith("/") or _DRIVE.match(name) or ".." in plain.split("/") or "\0" in name:
        return "a path out of its folder, and no such image is in it: add the image, or give names within the folder"
    return ""


class Names:
    """Files by the names that others may give them.

    Args:
        paths: Paths of the files, with forward slashes.
        tree: Files of the whole set.
    """

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
            self._by_name.setdefault(folded(name), []).append(path)
            self._by_stem.setdefault(folded(PurePosixPath(name).stem), []).append(path)
            self._in_folder[path.rpartition("/")[0]] += 1

    def matches(self, name: str, by_stem: bool = False) -> list[Match]:
        """Return the files that a name may mean: of those with its file name, the ones that share most folders with it.

        A folder of the name that the set has elsewhere speaks against a file: "train/1.jpg" is not "val/1.jpg".

        Args:
            name: Path or file name.
            by_stem: Whether the ending of the name does not count.
        """
        *above, last = folders_of(name) or ("",)
        stem = PurePosixPath(last).stem if last.lower().endswith(IMAGE_SUFFIXES) else last
        known = self._by_stem.get(folded(stem), []) if by_stem else self._by_name.get(folded(last), [])
        exact = [path for path in known if path.rpartition("/")[2] == last]
        best, found = -1, list[Match]()
        for path in exact or known:
            folders = path.split("/")[:-1]
            pairs = zip(reversed(above), reversed(folders), strict=False)
            shared = next((place for place, (a, b) in enumerate(pairs) if folded(a) != folded(b)), None)
            if shared is not None and above[-1 - shared] in self._folders:
                continue
            shared = min(len(above), len(folders)) if shared is None else shared
            if shared >= best:
                found = [] if shared > best else found
                best = shared
                found.append(Match(path, "/".join(folders[: len(folders) - shared])))
        return found

    def located(self, names: Sequence[str], file: str, part: str) -> list[str | None]:
        """Return the images that one annotation file names; None for each that is not there.

        All lie in one folder, or in several whose images are named by this file for the most part: a single image in
        a folder of others is not the one that lacks in its own.

        Args:
            names: Names in the file; one without an ending may have any.
            file: Path of the annotation file.
            part: Part that the file is of; "" for none.

        Raises:
            UserError: The images may be those of several folders.
        """
        found = [self.matches(name, by_stem=not name.lower().endswith(IMAGE_SUFFIXES)) for name in names]
        main = self._main_base(found, file, part)
        paths: list[str | None] = []
        for matches in found:
            here = [one.path for one in matches if one.base == main]
            rest = here or [one.path for one in matches if part_fits(one.path, part)]
            paths.append(rest[0] if len(rest) == 1 else None)
        named = Counter(path.rpartition("/")[0] for path in paths if path is not None)
        for place, (path, matches) in enumerate(zip(paths, found, strict=True)):
            if path is not None and all(one.base != main for one in matches):
                folder = path.rpartition("/")[0]
                if 2 * named[folder] < self._in_folder[folder]:
                    paths[place] = None
        return paths

    def _main_base(self, found: Sequence[Sequence[Match]], file: str, part: str) -> str | None:
        """Return the folder that names are relative to: of those that have half of them, the nearest to their file."""
        counts = Counter(one.base for matches in found for one in matches)
        if not counts:
            return None
        fitting = {base: count for base, count in counts.items() if part_fits(f"{base}/", part)} or counts
        enough = min(max(fitting.values()), -(-sum(map(bool, found)) // 2))  # half of the images, if any has so many
        ranked = sorted(
            (_distance(base, file, part), len(plain_folders(base)), base)
            for base, count in fitting.items()
            if count >= enough
        )
        rivals = [base for *rank, base in ranked if tuple(rank) == ranked[0][:2]]
        if any(len([one for one in matches if one.base in rivals]) > 1 for matches in found):
            raise UserError(
                f"the images of {self._tree.place_of(file)!r} are in {rivals[0]!r} and in {rivals[1]!r}: name them "
                "with their folder, or move one of the folders away."
            )
        return ranked[0][2]

    def beside(self, file: str, named: Sequence[str]) -> str | None:
        """Return the image that an annotation file of its own describes; None where it is not there.

        The file that it names comes first, then the one of its own stem; both as near as can be before any that lies
        elsewhere.

        Args:
            file: Path of the annotation file.
            named: Names that it gives its image, the likeliest first.

        Raises:
            UserError: Several images may be meant.
        """
        stem = PurePosixPath(file).stem
        asked = [*((name, False) for name in named if name), *((name, True) for name in named if name), (stem, True)]
        part = part_of_folders(file)
        for is_near in (True, False):
            for name, by_stem in asked:
                paths = [one.path for one in self.matches(name, by_stem) if part_fits(one.path, part)]
                paths = [path for path in paths if not self._is_of_others(path, file)]
                ranks = {path: _apart(path, file) for path in paths}
                near = [path for path in paths if (ranks[path] <= 1) == is_near]
                best = [path for path in near if ranks[path] == min(ranks[one] for one in near)]
                if len(best) > 1:
                    raise UserError(
                        f"{self._tree.place_of(file)!r} may describe {best[0]!r} or {best[1]!r}: remove one of the two "
                        "images, or name the right one in the file."
                    )
                if best:
                    return best[0]
        return None

    def _is_of_others(self, path: str, file: str) -> bool:
        """Return whether folders say that an image and an annotation file belong to different ones: "cam1", "cam2"."""
        ending = PurePosixPath(file).suffix
        if ending not in self._folders_of:
            same = [other for other in self._tree.files if other.endswith(ending)]
            self._folders_of[ending] = {part for other in same for part in other.split("/")[:-1]}
        theirs, mine = set(plain_folders(path.rpartition("/")[0])), set(plain_folders(file.rpartition("/")[0]))
        return bool((mine - theirs) & self._image_folders or (theirs - mine) & self._folders_of[ending])


def _apart(path: str, file: str) -> int:
    """Return 0 for an image beside its annotation file, 1 for one in the parallel folder, 2 elsewhere."""
    here, there = path.rpartition("/")[0], file.rpartition("/")[0]
    return 0 if here == there else 1 if plain_folders(here) == plain_folders(there) else 2


def _distance(base: str, file: str, part: str) -> int:
    """Return how far the folder of some images is from the file that describes them, in steps of likelihood."""
    here, stem = file.rpartition("/")[0], folded(PurePosixPath(file).stem)
    above, name = here.rpartition("/")[0], folded(base.rpartition("/")[2])
    if base == here:
        return 0
    if name in IMAGE_FOLDERS and base.rpartition("/")[0] == here:
        return 1
    if name and (stem == name or stem.endswith((f"_{name}", f"-{name}"))):  # train2017 of instances_train2017
        return 2
    if part and part_of_folders(f"{base}/") == part:
        return 3
    return 4 if base == above or (name in IMAGE_FOLDERS and base.rpartition("/")[0] == above) else 5


def plain_folders(folder: str) -> tuple[str, ...]:
    """Return the folders of a path but those that say what kind of files is in them."""
    kinds = (*IMAGE_FOLDERS, *LABEL_FOLDERS)
    return tuple(part for part in folder.split("/") if part and part.lower() not in kinds)
