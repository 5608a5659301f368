"""How the parts of a set with boxes are spelled in the names of files and folders."""

import re
from pathlib import PurePosixPath

from paucal.data.sources.folder import PARTS

# The images of "trainval" are divided by the lists of train and val; those in neither are for training.
SPELLINGS = {**PARTS, "trainval": "train"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LONGEST_FIRST = "|".join(sorted(SPELLINGS, key=len, reverse=True))
_OF_A_PART = re.compile(rf"({_LONGEST_FIRST})(?:set|data|images?|imgs?|labels?)?")
_FOLDER = re.compile(rf"({'|'.join(PARTS)})[-_]?(?:\d{{4}})?")


def part_of_name(name: str) -> str:
    """Return the part that a word in the name of a file stands for; "" for none, and for words of several.

    Example:
        >>> part_of_name("instances_train2017"), part_of_name("Valid_labels"), part_of_name("latest")
        ('train', 'val', '')
        >>> part_of_name("trainVal"), part_of_name("test_of_train")
        ('train', '')
    """
    words = [match for word in _WORD.findall(name) if (match := _OF_A_PART.fullmatch(word.lower()))]
    parts = {SPELLINGS[match[1]] for match in words}
    if parts == {"train", "val"}:
        return "train"
    return parts.pop() if len(parts) == 1 else ""


def part_of_folders(path: str) -> str:
    """Return the part that a folder of a path is called like; "" for none.

    Example:
        >>> part_of_folders("images/val2017/1.jpg"), part_of_folders("Train/1.jpg"), part_of_folders("test tubes/1.jpg")
        ('val', 'train', '')
    """
    found = [match for folder in path.split("/")[:-1] if (match := _FOLDER.fullmatch(folder.lower()))]
    return PARTS[found[0][1]] if found else ""


def part_fits(path: str, part: str) -> bool:
    """Return whether no folder of a path is called like another part than a given one, which is "" for any."""
    return part_of_folders(path) in ("", part) or not part


def part_of_file(path: str) -> str:
    """Return the part that an annotation file is of, by its name or its folders; "" for none."""
    return part_of_name(PurePosixPath(path).stem) or part_of_folders(path)
