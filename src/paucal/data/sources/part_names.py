"""Parts in the names of tables and lists: `train.csv`, `birds_train.txt`, `test_labels.csv`."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from paucal.data.sources.folder import PARTS
from paucal.types import UserError

_WORD = re.compile(r"[^-_.\s()\[\]]+")
_INNER_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class PartName(NamedTuple):
    """What the name of a file tells.

    Attributes:
        part: "train", "val" or "test"; "" where the name tells none.
        others: The other words of the name, in small letters; files of one set have the same.
        title: Name of the set that stands before the part; "" where none does.
        joint: Whether the file holds the validation images too (`trainval.txt`).
    """

    part: str
    others: tuple[str, ...]
    title: str
    joint: bool = False


def part_name(file: Path) -> PartName:
    """Return the part that the first or last word of a file's name is; words that hold a part's name are none.

    Example:
        >>> part_name(Path("birds_train.csv"))
        PartName(part='train', others=('birds',), title='birds', joint=False)
        >>> [part_name(Path(name)).part for name in ("testLabels.csv", "latest.csv", "train_val.txt", "a_test_b.txt")]
        ['test', '', 'train', '']
    """
    stem = _INNER_CAPITAL.sub("_", file.stem)
    words = [word.lower() for word in _WORD.findall(stem)]
    parts = [PARTS.get(word, "") for word in words]
    if words[-2:] == ["train", "val"]:
        words[-2:], parts[-2:] = ["trainval"], ["train"]
    if len(set(parts) - {""}) != 1 or not (parts[0] or parts[-1]):
        return PartName("", tuple(words), file.stem)
    others = tuple(word for word, part in zip(words, parts, strict=True) if not part)
    end = re.fullmatch(r"(.*?)[-_.\s()\[\]]*(?:train[-_]val|[^-_.\s()\[\]]+)[)\]]*", stem)
    title = end[1] if end and parts[-1] else ""
    return PartName(next(filter(None, parts)), others, title, "trainval" in words)


def train_files(files: Sequence[Path]) -> list[Path]:
    """Return the files of training images by their names, without those that join two others (`trainval.txt`)."""
    found = [file for file in files if part_name(file).part == "train"]
    plain = {part_name(file).others for file in found if not part_name(file).joint}
    return [file for file in found if not (part_name(file).joint and part_name(file).others in plain)]


def files_of_set(file: Path, accepts: Callable[[Path], bool], noun: str) -> dict[str, Path]:
    """Return the files of the parts of a set, in the order train, val, test; "" for a file on its own.

    Args:
        file: Any file; one of training images brings those of the same name beside it.
        accepts: Whether a file may belong to the set.
        noun: What the files are called in messages, such as "lists".

    Raises:
        UserError: Two files are of one part.
    """
    known = part_name(file)
    if known.part != "train":
        return {"": file}
    found = {"train": file}
    for other in sorted(file.parent.glob(f"*{file.suffix}")):
        same = part_name(other)
        hidden = other.name.startswith(".")
        if hidden or same.others != known.others or same.part in ("", "train") or (known.joint and same.part == "val"):
            continue
        if accepts(other) and found.setdefault(same.part, other) != other:
            raise UserError(f"{other} and {found[same.part].name} are both {noun} for {same.part}; keep one of them")
    return {part: found[part] for part in ("train", "val", "test") if part in found} if len(found) > 1 else {"": file}


def tells_part(name: str, part: str) -> bool:
    """Return whether a folder's name has a part among its words: `train_images` tells "train".

    Example:
        >>> tells_part("train_images", "train"), tells_part("Validation", "val"), tells_part("latest", "test")
        (True, True, False)
    """
    words = _WORD.findall(_INNER_CAPITAL.sub("_", name).lower())
    return part != "" and {PARTS[word] for word in words if word in PARTS} == {part}
