"""The coding of masks: the class that each mask value stands for, and the value that means "not labelled"."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from paucal.data.masks import consistency
from paucal.data.masks.consistency import MIN_FOREGROUND, VOID
from paucal.data.masks.mask_files import MaskStatistics, pack_colours, unpack_colour
from paucal.reading import read_decoded
from paucal.types import UserError
from paucal.wording import counted

CodingKind = Literal["index", "binary", "grey", "colour"]
IGNORED = 255  # class number of unlabelled pixels, which losses and scores ignore
MAX_CLASSES = 255  # class numbers 0 to 254 in uint8, since 255 is `IGNORED`
# Grey levels count as classes if neighbouring levels differ by at least `MIN_LEVEL_GAP`, and there are at most
# `MAX_LEVELS` levels.
MIN_LEVEL_GAP, MAX_LEVELS = 8, 32
BINARY_THRESHOLD = 128  # in masks of two classes, grey levels from this value on are foreground
MAX_BYTES = 1 << 20  # maximum size of a file of class names
HEADER_WORDS = {
    *("name", "class", "label", "r", "g", "b", "red", "green", "blue", "value", "index", "id", "color", "colour"),
    *("class_name", "label_name", "pixel value", "class_id", "label_id"),
}
# Rows without commas: CVAT's `road:128,64,128::`, and CamVid's `128 64 128  road`.
_CVAT_ROW = re.compile(r"(?P<name>[^:]+):(?P<r>\d+),(?P<g>\d+),(?P<b>\d+):[^:]*:[^:]*")
_SPACED_ROW = re.compile(r"(?P<r>\d+)\s+(?P<g>\d+)\s+(?P<b>\d+)\s+(?P<name>\S.*)")


@dataclass(frozen=True)
class MaskCoding:
    """The mask value that stands for each class in a set of masks; colours are packed (`pack_colours`)."""

    kind: CodingKind  # "index" if mask values are class numbers, "binary" for two classes
    values: tuple[int, ...]  # mask value of each class, in the order of the classes
    ignore: int | None = None  # value that means "not labelled"; None if there is no such value

    def __post_init__(self) -> None:  # a damaged model card may have invalid values
        is_valid = all(type(value) is int and 0 <= value < 1 << 24 for value in (*self.values, self.ignore or 0))
        is_valid = is_valid and len(set(self.values)) == len(self.values) and self.ignore not in self.values
        if self.kind not in get_args(CodingKind) or not is_valid or not 2 <= len(self.values) <= MAX_CLASSES:
            raise UserError(
                f"masks of kind {self.kind!r} have {len(self.values)} class values, expected 2 to {MAX_CLASSES} "
                "different values from 0 to 16,777,215."
            )

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.values)

    def encode(self, values: NDArray[np.int32], name: str) -> NDArray[np.uint8]:
        """Convert the (H, W) values of the mask file `name` to class numbers; unlabelled pixels become `IGNORED`."""
        if self.kind == "binary":
            labelled = values if self.ignore is None else values[values != self.ignore]
            # In a file that contains only 0 and 1, 1 marks the foreground, even if other files of the set use 255.
            threshold = 1 if labelled.max(initial=0) <= 1 else min(self.values[1], BINARY_THRESHOLD)
            has_class, classes = np.ones(values.shape, dtype=bool), (values >= threshold).astype(np.int64)
        else:
            order = np.argsort(self.values)
            classes = order[np.searchsorted(self.values, values, sorter=order).clip(max=self.count - 1)]
            has_class = np.asarray(self.values)[classes] == values
        is_ignored = np.zeros_like(has_class) if self.ignore is None else values == self.ignore
        if not (has_class | is_ignored).all():
            stray = self.format_value(int(values[~(has_class | is_ignored)][0]))
            raise UserError(
                f"mask {name} has the value {stray}, which is not a class ({self.describe()}): correct the mask, add "
                "the class to --classes, or give --ignore if the value means that a pixel is not labelled."
            )
        return np.where(is_ignored, IGNORED, classes).astype(np.uint8)

    def decode(self, classes: NDArray[np.integer]) -> NDArray[np.uint8 | np.uint16]:
        """Convert (H, W) class numbers to mask values: an (H, W) array of numbers or an (H, W, 3) array of colours."""
        if self.kind == "colour":
            return np.asarray([unpack_colour(value) for value in self.values], dtype=np.uint8)[classes]
        return np.asarray(self.values)[classes].astype(np.uint8 if max(self.values) < 256 else np.uint16)

    def describe(self) -> str:
        """Return a phrase about the mask values, such as "two classes, 0 and 255"."""
        text = {
            "index": f"the value is the number of the class, {self.values[0]} to {self.values[-1]}",
            "binary": f"two classes, 0 and {self.values[1]}",
            "grey": f"grey levels {', '.join(map(str, self.values[:8]))}{', ...' if self.count > 8 else ''}",
            "colour": f"{self.count} colours",
        }[self.kind]
        return text if self.ignore is None else f"{text}; {self.format_value(self.ignore)} is not labelled"

    def format_value(self, value: int) -> str:
        """Return a mask value as text: a number, or (red, green, blue)."""
        return "({}, {}, {})".format(*unpack_colour(value)) if self.kind == "colour" else str(value)


@dataclass(frozen=True)
class NamedClasses:
    """Class names from a file, and optionally the mask value of each class."""

    names: tuple[str, ...]
    # Mask value of each class, with packed colours (`pack_colours`); None if the file has only names.
    values: tuple[int, ...] | None = None
    has_colours: bool = False  # whether the values are colours
    note: str = ""  # note on the text encoding that was assumed for the file; "" if the encoding is Unicode


def read_class_names(path: Path) -> NamedClasses:
    """Read a file of class names, with one name per line.

    The file may also be a CSV file with a mask value (two columns) or a colour (four columns) for each name. The name
    is in the first or in the last column. A header line is recognised by its words ("name", "r", "g", "b", "value",
    ...). CVAT's `labelmap.txt` and CamVid's `label_colors.txt` are also supported.
    """
    try:
        text, _, note = read_decoded(path, MAX_BYTES)
    except FileNotFoundError:
        raise UserError(f"--classes: the file {str(path)!r} does not exist; check the path.") from None
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for row_pattern in (_CVAT_ROW, _SPACED_ROW):
        matches = [row_pattern.fullmatch(line) for line in lines]
        if matches and all(matches):
            text = "\n".join('"{name}",{r},{g},{b}'.format(**match.groupdict()) for match in matches if match)
            break
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline=""))]
    except csv.Error as problem:
        raise UserError(f"--classes: {str(path)!r} cannot be read ({problem}); give one name per line.") from None
    rows = [row for row in rows if any(row)]
    if len(rows) > 1 and {cell.lower() for cell in rows[0]} <= HEADER_WORDS:
        rows = rows[1:]
    if not rows:
        raise UserError(f"--classes: {str(path)!r} contains no class name; expected one name per line.")
    classes = [_read_row(row, path) for row in rows]
    widths = {len(numbers) for _, numbers in classes}
    if len(widths) > 1:
        raise UserError(
            f"--classes: the rows of {str(path)!r} have different numbers of columns: give each row the same columns."
        )
    names = tuple(name for name, _ in classes)
    _refuse_duplicates(names, path)
    if widths == {0}:
        return NamedClasses(names, note=note)
    has_colours = widths == {3}
    values = tuple(int(pack_colours(numbers)) if has_colours else numbers[0] for _, numbers in classes)  # type: ignore[arg-type]
    _refuse_duplicates(values, path)
    return NamedClasses(names, values, has_colours, note)


def _read_row(row: list[str], path: Path) -> tuple[str, list[int]]:
    """Return the class name in a row, and the row's numbers: none, a mask value, or red, green and blue."""
    for name, number_cells in ((row[0], row[1:]), (row[-1], row[:-1])):
        if len(number_cells) in (0, 1, 3) and all(cell.isascii() and cell.isdigit() for cell in number_cells) and name:
            numbers = [int(cell) for cell in number_cells if len(cell) < 6]
            largest = 255 if len(number_cells) == 3 else 65535
            if len(numbers) == len(number_cells) and all(number <= largest for number in numbers):
                return name, numbers
    raise UserError(
        f"--classes: the row {','.join(row)[:80]!r} of {str(path)!r} is not of the form NAME, NAME,VALUE or NAME,R,G,B."
    )


def _refuse_duplicates(entries: tuple[object, ...], path: Path) -> None:
    duplicate = next((entry for index, entry in enumerate(entries) if entry in entries[:index]), None)
    if duplicate is not None:
        raise UserError(f"--classes: {str(path)!r} has {str(duplicate)[:80]!r} twice: list each class once.")


def find_coding(
    stats: MaskStatistics,
    requested_kind: CodingKind | None = None,
    ignore: Sequence[int] | None = None,
    named_classes: NamedClasses | None = None,
) -> MaskCoding:
    """Choose the coding of a set of masks; refuse an unclear coding. For the arguments, see `read_masks`."""
    has_named_colours = named_classes is not None and named_classes.has_colours
    if requested_kind is None and not has_named_colours:
        consistency.refuse_mixed_kinds(stats)
    in_colour = stats.has_colour or (stats.has_palette and (requested_kind == "colour" or has_named_colours))
    stats = stats.as_colours() if in_colour else stats
    void = _ignored_value(ignore, in_colour)
    if requested_kind in (None, "index") and not in_colour:
        consistency.refuse_mixed_codings(stats, void)
        consistency.refuse_stray_pixels(stats, void)
    if named_classes is not None and named_classes.values is not None:
        if named_classes.has_colours != in_colour:
            raise UserError(
                f"--classes gives {'colours' if named_classes.has_colours else 'grey values'}, but the masks are "
                f"{'in colour' if in_colour else 'grey'}: give a file that matches the masks."
            )
        kind: CodingKind = "colour" if in_colour else requested_kind or "index"
        if kind == "index" and void is None and VOID in stats.values and VOID not in named_classes.values:
            void = VOID
        return MaskCoding(kind, named_classes.values, void)
    values = [value for value in stats.values if value != void]
    if requested_kind is None and values:
        consistency.refuse_lossy(stats)
    kind = requested_kind or _infer_kind(stats, values, in_colour)
    _require_kind(kind, stats, values, in_colour)
    if kind == "binary":
        consistency.refuse_faint(stats, void)
    coding = _code_values(kind, values, void, len(named_classes.names) if named_classes else 0)
    if named_classes is not None and len(named_classes.names) != coding.count:
        count = counted(len(named_classes.names), "class", "classes")
        raise UserError(
            f"--classes names {count}, but the masks have {coding.count} ({coding.describe()}): "
            f"give {coding.count} names, or names with their values."
        )
    return coding


def require_same_coding(coding: MaskCoding, stats: MaskStatistics, ignore: Sequence[int] | None = None) -> None:
    """Refuse masks whose values have another meaning than in `coding`, although `coding.encode` would accept them."""
    if coding.kind == "binary":
        consistency.refuse_faint(stats, coding.ignore)
    elif coding.kind == "index" and ignore is None and not stats.has_colour:
        consistency.refuse_mixed_kinds(stats)
        consistency.refuse_mixed_codings(stats)
        nonzero = set(stats.values) - {0}
        if coding.ignore == VOID and nonzero == {VOID}:
            raise UserError(
                f"the masks have only the values 0 and 255, but {coding.describe()}: every labelled pixel would be of "
                "the first class; store the masks with class numbers."
            )


def _ignored_value(ignore: Sequence[int] | None, in_colour: bool) -> int | None:
    if ignore is None:
        return None
    if in_colour and len(ignore) == 3 and max(ignore) < 256:
        return ignore[0] << 16 | ignore[1] << 8 | ignore[2]
    if not in_colour and len(ignore) == 1:
        return ignore[0]
    expected = "red, green and blue from 0 to 255, since the masks are in colour" if in_colour else "one grey value"
    raise UserError(f"--ignore is {' '.join(map(str, ignore))}, expected {expected}.")


def _infer_kind(stats: MaskStatistics, values: list[int], in_colour: bool) -> CodingKind:
    if in_colour:
        if len(values) <= MAX_CLASSES:
            consistency.refuse_blurred_colours(stats)
        return "colour"
    if consistency.is_black_and_white(stats, values):
        return "binary"
    if stats.has_palette:
        return "index"
    if not any(file.bits == 16 for file in stats.files):
        consistency.refuse_near_levels(stats, values)
        consistency.refuse_blurred_levels(stats, values)
    class_values = [value for value in values if value != VOID]
    gaps = [higher - lower for lower, higher in pairwise(values)]
    are_levels = (
        len(values) > 1
        and min(gaps) >= MIN_LEVEL_GAP
        and len(values) <= MAX_LEVELS
        and max(class_values) >= MIN_FOREGROUND
    )
    return "grey" if are_levels else "index"


def _require_kind(kind: CodingKind, stats: MaskStatistics, values: list[int], in_colour: bool) -> None:
    if (kind == "colour") != in_colour:
        raise UserError(
            f"--mask-values is {kind!r}, but the masks are {'in colour' if in_colour else 'grey'}: remove "
            "--mask-values, or convert the masks."
        )
    deep_file = next((file.name for file in stats.files if file.bits == 16), "")
    if deep_file and kind != "index":
        raise UserError(
            f"mask {deep_file} has 16 bits per pixel, which is supported only for class numbers, and the values of the "
            f"masks go up to {max(values, default=0)}: store the mask with 8 bits per pixel."
        )
    if not values:
        raise UserError("no pixel of the masks is labelled: give other masks, or another --ignore.")


def _code_values(kind: CodingKind, values: list[int], void: int | None, n_names: int) -> MaskCoding:
    """Return the coding of masks of this kind.

    Args:
        kind: Kind of coding.
        values: Values of labelled pixels.
        void: Value of unlabelled pixels; None if every pixel is labelled.
        n_names: Number of class names that the user gave, or 0.
    """
    if kind == "binary":
        top = 1 if max(values) == 1 else 255
        if len({value >= min(top, BINARY_THRESHOLD) for value in values}) < 2:
            raise UserError(
                f"all labelled pixels of the masks are of one class (values {min(values)} to {max(values)}), but masks "
                "of two classes contain 0 and 255: check the masks."
            )
        return MaskCoding("binary", (0, top), void)
    if kind == "index":
        void = VOID if void is None and VOID in values else void
        top = max((value for value in values if value != void), default=0)
        count = max(top + 1, n_names + (void is not None and void <= top))
        classes = tuple(value for value in range(count) if value != void)
        if len(classes) > MAX_CLASSES:
            raise UserError(
                f"the class numbers in the masks go up to {top}, but at most {MAX_CLASSES} classes are supported: "
                "number the classes from 0, or give the meaning of the values with --mask-values grey or --classes."
            )
        if len(classes) < 2:
            raise UserError("all labelled pixels of the masks are of one class, but two are needed: check the masks.")
        return MaskCoding("index", classes, void)
    # Each grey level or each colour is a class.
    if len(values) > MAX_CLASSES:
        raise UserError(
            f"the masks have {len(values)} {'colours' if kind == 'colour' else 'grey levels'}, but at most "
            f"{MAX_CLASSES} classes are supported: give each class one value, and store masks losslessly (PNG)."
        )
    if len(values) < 2:
        raise UserError(
            "all labelled pixels of the masks have the same value, but two classes are needed: check the masks."
        )
    return MaskCoding(kind, tuple(values), void)
