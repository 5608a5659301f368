"""Recognition of the split in file and folder names: `birds_train.csv`, `instances_train2017.json`, `imagesTr`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from paucal.types import UserError

# The split that each word in a file or folder name stands for.
PART_BY_WORD = {
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
TRAINVAL = "trainval"  # name of a list of training and validation images
# The split that each word in a folder name stands for, in sets with masks. "tr" and "ts" count only beside other words
# (nnU-Net's `imagesTr`).
STANDALONE_WORDS = {**PART_BY_WORD, "trainvalid": "train"}
FOLDER_WORDS = {**STANDALONE_WORDS, "tr": "train", "ts": "test"}

_SEPARATORS = r"-_.\s()\[\]"
_WORD = re.compile(rf"[^{_SEPARATORS}]+")
_INNER_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LETTERS = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
_LETTERS_ONLY = re.compile(_LETTERS)
_LETTERS_OR_DIGITS = re.compile(rf"{_LETTERS}|\d+|[^\x00-\x7f]+")
_PART_WORDS = "|".join(sorted(PART_BY_WORD, key=len, reverse=True))
_PART_WORD = re.compile(rf"({_PART_WORDS})(?:set|data|images?|imgs?|labels?)?")
_PART_FOLDER = re.compile(rf"({_PART_WORDS})[-_]?(?:\d{{4}})?")
_YEAR = re.compile(r"(?:19|20)\d\d")


class PartName(NamedTuple):
    """The parsed name of a file that may be the table or list of one split."""

    part: str  # split of the file; "" if the name has no word for a split
    other_words: tuple[str, ...]  # all other words in lower case; the same for all files of a set
    title: str  # text before the word for the split, which is the name of the set
    is_joint: bool = False  # whether the file has training and validation images together (`trainval.txt`)


def parse_part_name(file: Path) -> PartName:
    """Parse a file name whose first or last word may stand for a split.

    Example:
        >>> parse_part_name(Path("birds_train.csv"))
        PartName(part='train', other_words=('birds',), title='birds', is_joint=False)
        >>> names = ("testLabels.csv", "latest.csv", "train_val.txt", "a_test_b.txt")
        >>> [parse_part_name(Path(name)).part for name in names]
        ['test', '', 'train', '']
    """
    stem = _INNER_CAPITAL.sub("_", file.stem)
    words = [word.lower() for word in _WORD.findall(stem)]
    parts = [PART_BY_WORD.get(word, "") for word in words]
    if words[-2:] == ["train", "val"]:
        words[-2:], parts[-2:] = [TRAINVAL], ["train"]
    if len(set(parts) - {""}) != 1 or not (parts[0] or parts[-1]):
        return PartName("", tuple(words), file.stem)
    other_words = tuple(word for word, part in zip(words, parts, strict=True) if not part)
    end = re.fullmatch(rf"(.*?)[{_SEPARATORS}]*(?:train[-_]val|{_WORD.pattern})[)\]]*", stem)
    title = end[1] if end and parts[-1] else ""
    return PartName(next(filter(None, parts)), other_words, title, TRAINVAL in words)


def select_train_files(files: Sequence[Path]) -> list[Path]:
    """Return the files of training images; `trainval.txt` is left out if there is a `train.txt` of the same set."""
    names = {file: name for file in files if (name := parse_part_name(file)).part == "train"}
    train_only = {name.other_words for name in names.values() if not name.is_joint}
    return [file for file, name in names.items() if not (name.is_joint and name.other_words in train_only)]


def files_of_set(file: Path, accepts: Callable[[Path], bool], noun: str) -> dict[str, Path]:
    """Return the files of a set by split, in the order train, val, test; the key is "" if there is only one file.

    If `file` lists training images, the files of the other splits are found by their names in the same folder, if
    `accepts` recognises their format. `noun` is the plural noun for such files in messages, such as "tables".
    """
    train_name = parse_part_name(file)
    if train_name.part != "train":
        return {"": file}
    files = {"train": file}
    for other in sorted(file.parent.glob(f"*{file.suffix}")):
        name = parse_part_name(other)
        is_hidden = other.name.startswith(".")
        if is_hidden or name.other_words != train_name.other_words or name.part in ("", "train"):
            continue
        if train_name.is_joint and name.part == "val":
            continue
        if accepts(other) and files.setdefault(name.part, other) != other:
            raise UserError(f"{other} and {files[name.part].name} are both {noun} for {name.part}; keep one file.")
    return {part: files[part] for part in ("train", "val", "test") if part in files} if len(files) > 1 else {"": file}


def split_of_folder(name: str) -> str:
    """Return the split that the words of a folder's name stand for; "" if the words stand for no or several splits.

    Example:
        >>> split_of_folder("train_images"), split_of_folder("Validation"), split_of_folder("latest")
        ('train', 'val', '')
    """
    return only_split(_WORD.findall(_INNER_CAPITAL.sub("_", name).lower()))


def only_split(words: Iterable[str], split_by_word: Mapping[str, str] = PART_BY_WORD) -> str:
    """Return the split that some of the words stand for; "" if the words stand for no or several splits."""
    splits = {split_by_word[word] for word in words if word in split_by_word}
    return splits.pop() if len(splits) == 1 else ""


def split_in_name(name: str) -> str:
    """Return the split that a word in the name of an annotation file stands for; "" if no or several splits are named.

    Example:
        >>> split_in_name("instances_train2017"), split_in_name("Valid_labels"), split_in_name("latest")
        ('train', 'val', '')
        >>> split_in_name("trainVal"), split_in_name("test_of_train")
        ('train', '')
    """
    words = [match for word in _LETTERS_ONLY.findall(name) if (match := _PART_WORD.fullmatch(word.lower()))]
    parts = {PART_BY_WORD[match[1]] for match in words}
    if parts == {"train", "val"}:
        return "train"
    return parts.pop() if len(parts) == 1 else ""


def split_in_folders(path: str) -> str:
    """Return the split that a folder of a path is named after; "" if no folder is named after a split.

    Example:
        >>> [split_in_folders(path) for path in ("images/val2017/1.jpg", "Train/1.jpg", "test tubes/1.jpg")]
        ['val', 'train', '']
    """
    matches = [match for folder in path.split("/")[:-1] if (match := _PART_FOLDER.fullmatch(folder.lower()))]
    return PART_BY_WORD[matches[0][1]] if matches else ""


def fits_split(path: str, part: str) -> bool:
    """Return whether no folder of a path is named after a split other than `part`; always True if `part` is ""."""
    return split_in_folders(path) in ("", part) or not part


def split_of_file(path: str) -> str:
    """Return the split of an annotation file, from the file name or else from a folder; "" if neither names a split."""
    return split_in_name(PurePosixPath(path).stem) or split_in_folders(path)


def folder_words(name: str) -> list[str]:
    """Return the words of a folder's name in lower case, without a year after the word for a split.

    Example:
        >>> folder_words("train2017_gtFine"), folder_words("imagesTr")
        (['train', 'gt', 'fine'], ['images', 'tr'])
    """
    words = [word.lower() for word in _LETTERS_OR_DIGITS.findall(name)]
    pairs = zip(["", *words], words, strict=False)
    return [word for previous, word in pairs if previous not in FOLDER_WORDS or not _YEAR.fullmatch(word)]


def split_among_words(name: str) -> str:
    """Return the split that a folder's name in a set with masks stands for; "" if it names no or several splits.

    Unlike `split_of_folder`, this recognises digits after the split and nnU-Net's words (`train2017`, `imagesTr`).
    """
    return only_split(folder_words(name), FOLDER_WORDS)
