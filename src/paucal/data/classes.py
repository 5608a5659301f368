"""Cleaning and comparison of class names, and selection of the classes of a set that a list names."""

import difflib
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np

from paucal.data.images import ImageSet
from paucal.reading import decode_text, read_decoded
from paucal.types import UserError
from paucal.wording import counted, join_first_few

_INVISIBLE_CHARACTERS = "\0\u200b\u200e\u200f\u2060\ufeff"
_OUTER_BLANKS = re.compile(rf"^[\s{_INVISIBLE_CHARACTERS}]+|[\s{_INVISIBLE_CHARACTERS}]+$")
# Characters that are ignored when two names are compared.
_IGNORED_CHARACTERS = re.compile(rf"[{_INVISIBLE_CHARACTERS}\u00ad\u200c\u200d]")
_WORD_SEPARATORS = re.compile(r"(?<=[^\W_])[\s_-]+(?=[^\W_])")
_INTEGER = re.compile(r"([+-]?\d+)(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # a line break would split a name in a list
_SURROGATE = re.compile("[\ud800-\udfff]")
# Names that often stand for a missing label, but may also be real class names.
NO_LABEL_NAMES = ("NA", "N/A", "n/a", "nan", "NaN", "None", "NULL", "null", "NONE")
_MIN_MEASUREMENTS = 8  # smallest number of numeric class names that are treated as measurements
MAX_LIST_BYTES = 16 << 20  # largest file of class names, in bytes


def plain_name(name: str) -> str:
    r"""Return a name as valid Unicode in composed form (NFC), on one line, without outer white space.

    Bytes that are not UTF-8, as in folder names of old archives, are decoded as Windows-1252 if possible, else escaped.

    Example:
        >>> plain_name(" cat\r"), plain_name("cafe\u0301"), plain_name("caf\udce9"), plain_name("\udcc3\udce8")
        ('cat', 'café', 'café', '\\xc3\\xe8')
    """
    if name.isascii() and name.isprintable():
        return name.strip()
    return unicodedata.normalize("NFC", _OUTER_BLANKS.sub("", _CONTROL_CHARACTERS.sub(" ", valid_text(name))))


def valid_text(text: str) -> str:
    """Return text without surrogates: the bytes that surrogates stand for are decoded as Windows-1252 or escaped."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        pass
    try:
        return decode_text(text.encode(errors="surrogateescape"), "a name").text
    except (UserError, UnicodeEncodeError):
        return _SURROGATE.sub(_escape_surrogate, text)


def _escape_surrogate(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def plain_names(names: Sequence[str]) -> dict[str, str]:
    """Return a mapping from each class name of a set to its plain name (see `plain_name`).

    If all names are whole numbers, the ".0" that tools add in columns with missing values is removed. Names that are
    all "true" or "false" in different cases become "True" and "False".

    Example:
        >>> plain_names(["0.0", "1", "1.0"]), plain_names(["1.0", "1.5"])
        ({'0.0': '0', '1': '1', '1.0': '1'}, {'1.0': '1.0', '1.5': '1.5'})
    """
    plain_by_name = {name: plain_name(name) for name in names}
    number_matches = {name: _INTEGER.fullmatch(plain) for name, plain in plain_by_name.items()}
    if all(number_matches.values()):
        return {name: match[1] for name, match in number_matches.items() if match}
    folded = {plain.casefold() for plain in plain_by_name.values()}
    if folded <= {"true", "false"} and len(folded) < len(set(plain_by_name.values())):
        return {name: plain.capitalize() for name, plain in plain_by_name.items()}
    return plain_by_name


def plain_if_distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the plain names of classes, or the unchanged names if two plain names are equal or one is empty."""
    plain_by_name = plain_names(names)
    plain = tuple(plain_by_name[name] for name in names)
    return plain if len(set(plain)) == len(names) and all(plain) else tuple(names)


def with_plain_classes(images: ImageSet) -> ImageSet:
    """Return a set whose classes have plain names; classes with equal plain names are joined, with a note."""
    plain_by_name = plain_names(images.classes)
    if empty := [name for name, plain in plain_by_name.items() if not plain]:
        raise UserError(f"the class name {empty[0][:20]!r} has no visible characters: rename the class.")
    names = [plain_by_name[name] for name in images.classes]
    if names == list(images.classes):
        return images
    classes = list(dict.fromkeys(names))
    classes = sorted(classes) if list(images.classes) == sorted(images.classes) else classes
    new_labels = np.asarray([*map(classes.index, names), -1], dtype=np.int64)  # new label of each old label
    multi_hot = None
    if images.multi_hot is not None:
        multi_hot = np.full((len(images), len(classes)), -1, dtype=np.int8)
        # If columns are joined, a known label takes precedence over an unknown label.
        for old_column, new_column in enumerate(new_labels[:-1]):
            multi_hot[:, new_column] = np.maximum(multi_hot[:, new_column], images.multi_hot[:, old_column])
    raw_names: dict[str, list[str]] = {}
    for name, plain in plain_by_name.items():
        raw_names.setdefault(plain, []).append(name)
    notes = list(images.notes)
    if joined_names := [repr(plain) for plain, spellings in raw_names.items() if len(spellings) > 1]:
        spellings_text = counted(len(joined_names), "class has", "classes have")
        notes.append(f"{spellings_text} several spellings, which were joined ({join_first_few(joined_names)})")
    if recoded_names := [repr(plain) for name, plain in plain_by_name.items() if _SURROGATE.search(name)]:
        recoded = join_first_few(recoded_names)
        notes.append(f"class names that are not UTF-8 were read as {recoded}: rename these classes if that is wrong")
    return replace(
        images,
        classes=tuple(classes),
        labels=new_labels[images.labels],
        multi_hot=multi_hot,
        notes=tuple(notes),
    )


def alike_names(names: Iterable[str]) -> list[list[str]]:
    """Return groups of names that differ only in case, word separators, leading zeros or full-width characters.

    Example:
        >>> alike_names(["CAT", "cat", "red cell", "red_cell", "dog", "1", "01", "A+", "A-"])
        [['CAT', 'cat'], ['red cell', 'red_cell'], ['1', '01']]
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_comparison_key(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _comparison_key(name: str) -> str:
    folded = unicodedata.normalize("NFKC", _IGNORED_CHARACTERS.sub("", plain_name(name))).casefold()
    number_match = _INTEGER.fullmatch(folded)
    return number_match[1].lstrip("+0") or "0" if number_match else _WORD_SEPARATORS.sub(" ", folded)


def are_alike(first: str, second: str) -> bool:
    """Return whether two names differ at most in the ways that `alike_names` ignores."""
    return _comparison_key(first) == _comparison_key(second)


def are_measurements(names: Sequence[str], rare_fraction: float) -> bool:
    """Return whether class names look like measurements, as for regression.

    This is so if there are at least 8 names, all names are numbers, and either some numbers are not integers or most
    classes have too few images to learn from (`rare_fraction`, in [0, 1], of the classes).
    """
    are_numbers = len(names) >= _MIN_MEASUREMENTS and all(map(_NUMBER.fullmatch, names))
    return are_numbers and (rare_fraction > 0.5 or not all(map(_INTEGER.fullmatch, names)))


def shipped_lists() -> list[str]:
    """Return the names of the class lists that come with paucal, such as "imagenet100"."""
    return sorted(entry.name.removesuffix(".txt") for entry in _class_lists().iterdir() if entry.name.endswith(".txt"))


def read_class_list(source: str | Path) -> list[str]:
    """Read the names of classes from a file with one name per line, or from a list that comes with paucal."""
    path, shipped = Path(source).expanduser(), shipped_lists()
    if not path.exists() and str(source) in shipped:
        text = (_class_lists() / f"{source}.txt").read_text(encoding="utf-8")
    elif path.is_file():
        text = read_decoded(path, MAX_LIST_BYTES).text
    else:
        raise UserError(
            f"{path} is not a file; expected a file with one class name per line, or the name of a list that comes "
            f"with paucal ({', '.join(shipped)})"
        )
    lines = [line.strip() for line in io.StringIO(text, newline=None)]
    names = [plain_name(line) for line in lines if line and not line.startswith("#")]  # a later "#" belongs to the name
    if not names:
        raise UserError(f"{source} names no classes; expected one name per line")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{source} names the class '{repeated[0]}' more than once; keep one of the lines")
    return names


def choose_classes(images: ImageSet, source: str | Path) -> ImageSet:
    """Return only the images of some classes, whose names are in a file or in a list that comes with paucal.

    The classes keep their order in the set and are renumbered from 0. The set's own split is kept. In a multi-label
    set, images without any of these classes are kept too, without a label.
    """
    names = read_class_list(source)
    if not images.classes:
        raise UserError(f"--classes {source} chooses classes, but {images.location} was opened without labels")
    set_names = set(images.classes)
    if unknown := [name for name in names if name not in set_names]:
        similar = [f"'{name}'" for name in difflib.get_close_matches(unknown[0], images.classes, n=3)]
        advice = f"; the data has {', '.join(images.classes[:2])}, ..."
        if similar:
            advice = f", did you mean {' or '.join(similar)}?"
        raise UserError(
            f"{len(unknown)} of the {len(names)} classes of {source} are not in {images.location} "
            f"(such as '{unknown[0]}'{advice}); correct the file or the data"
        )
    if len(names) < 2:
        raise UserError(f"{source} names only one class ('{names[0]}'); training a classifier needs at least two")
    listed_names = set(names)
    used_classes = tuple(name for name in images.classes if name in listed_names)
    label_by_name = {name: label for label, name in enumerate(used_classes)}
    new_labels = np.asarray([label_by_name.get(name, -1) for name in images.classes], dtype=np.int64)
    note = f"{len(used_classes)} of {len(images.classes)} classes are used ({Path(source).name})"
    if images.multi_hot is not None:
        multi_hot = images.multi_hot[:, new_labels >= 0]
        return replace(images, classes=used_classes, multi_hot=multi_hot, notes=(*images.notes, note))
    labels = np.where(images.labels >= 0, new_labels[images.labels], -1)
    selected = images.select(np.flatnonzero(labels >= 0), note)
    return replace(selected, classes=used_classes, labels=labels[labels >= 0])


def _class_lists():
    return resources.files("paucal.data") / "class_lists"


def class_names_by_line(lines: Sequence[str], shown_path: str) -> list[str]:
    """Return the class names in the lines of a file, in label order; refuse empty lines that are not at the end."""
    names = [line.strip() for line in lines]
    while names and not names[-1]:
        names.pop()
    if "" in names:
        raise UserError(
            f"line {names.index('') + 1} of {shown_path!r} is empty, so the class numbers after this line are unclear: "
            "write a class name in the line, or remove the line."
        )
    return names
