"""What the values of masks mean: which class each one is, and which pixels nobody has labelled."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from paucal.data.masks.class_names import NamedClasses
from paucal.data.masks.measuring import Seen
from paucal.data.masks.mixing import (
    HIGH,
    VOID,
    is_binary,
    refuse_blurred,
    refuse_blurred_colours,
    refuse_codings,
    refuse_faint,
    refuse_kinds,
    refuse_lossy,
    refuse_nearly,
    refuse_specks,
)
from paucal.data.masks.pixels import unpacked
from paucal.types import UserError

Coding = Literal["index", "binary", "grey", "colour"]
IGNORED = 255  # the class number of pixels that count for nothing
MOST_CLASSES = 255
SPREAD, FEW_LEVELS = 8, 32  # how grey levels that stand for classes are told from numbers
MIDDLE = 128


@dataclass(frozen=True)
class MaskCoding:
    """The classes of a set of masks.

    Attributes:
        kind: "index", "binary", "grey" or "colour".
        values: the mask value of each class, in the order of the classes; colours are packed numbers.
        ignore: the value that means "not labelled"; None for none.

    Raises:
        UserError: the values are no sound list, as in a damaged model card.
    """

    kind: Coding
    values: tuple[int, ...]
    ignore: int | None = None

    def __post_init__(self) -> None:
        sound = all(type(value) is int and 0 <= value < 1 << 24 for value in (*self.values, self.ignore or 0))
        sound = sound and len(set(self.values)) == len(self.values) and self.ignore not in self.values
        if self.kind not in get_args(Coding) or not sound or not 2 <= len(self.values) <= MOST_CLASSES:
            raise UserError(
                f"masks of kind {self.kind!r} have {len(self.values)} values of classes, expected 2 to {MOST_CLASSES} "
                "different ones from 0 to 16,777,215."
            )

    @property
    def count(self) -> int:
        """The number of classes."""
        return len(self.values)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(np.asarray(self.values))

    @cached_property
    def _ordered(self) -> NDArray[np.int64]:
        return np.asarray(self.values, dtype=np.int64)[self._order]

    def encode(self, values: NDArray[np.int32], name: str) -> NDArray[np.uint8]:
        """Return the (H, W) class numbers of a mask's values, `IGNORED` where nobody has labelled.

        Raises:
            UserError: a value is of no class.
        """
        if self.kind == "binary":
            labelled = values if self.ignore is None else values[values != self.ignore]
            # A file whose highest value is 1 marks with it, also in a set whose other files mark with 255.
            middle = 1 if labelled.max(initial=0) <= 1 else min(self.values[1], MIDDLE)
            known, classes = np.ones(values.shape, dtype=bool), (values >= middle).astype(np.int64)
        else:
            places = np.searchsorted(self._ordered, values).clip(max=self.count - 1)
            known, classes = self._ordered[places] == values, self._order[places]
        ignored = np.zeros_like(known) if self.ignore is None else values == self.ignore
        if not (known | ignored).all():
            self._refuse(int(values[~(known | ignored)][0]), name)
        return np.where(ignored, IGNORED, classes).astype(np.uint8)

    def decode(self, classes: NDArray[np.integer]) -> NDArray[np.uint8 | np.uint16]:
        """Return class numbers as a mask of this coding: (H, W), or (H, W, 3) of colours."""
        if self.kind == "colour":
            return np.asarray([unpacked(value) for value in self.values], dtype=np.uint8)[classes]
        return np.asarray(self.values)[classes].astype(np.uint8 if max(self.values) < 256 else np.uint16)

    def describe(self) -> str:
        """Return one sentence about the values."""
        words = {
            "index": f"the value is the number of the class, {self.values[0]} to {self.values[-1]}",
            "binary": f"two classes, 0 and {self.values[1]}",
            "grey": f"grey levels {', '.join(map(str, self.values[:8]))}{', ...' if self.count > 8 else ''}",
            "colour": f"{self.count} colours",
        }[self.kind]
        if self.ignore is None:
            return words
        return f"{words}; {self.shown(self.ignore)} is not labelled"

    def shown(self, value: int) -> str:
        """Return a value for people."""
        return "({}, {}, {})".format(*unpacked(value)) if self.kind == "colour" else str(value)

    def _refuse(self, value: int, name: str) -> None:
        raise UserError(
            f"mask {name} has the value {self.shown(value)}, and the classes are {self.describe()}: correct the mask, "
            "name the class in --classes, or give --ignore where the value means that nobody has labelled."
        )


def find_coding(
    seen: Seen, wanted: Coding | None = None, ignore: Sequence[int] | None = None, named: NamedClasses | None = None
) -> MaskCoding:
    """Choose what the values of masks mean.

    Args:
        seen: Facts of all files.
        wanted: What the user says; None to tell it from the values.
        ignore: Value, or red, green and blue, that means "not labelled".
        named: Classes from a file.

    Raises:
        UserError: The values do not fit what was said, files of the set have different codings, or nothing sensible can
            be told from them.
    """
    if wanted is None:
        refuse_kinds(seen, colours_are_meant=named is not None and named.colours)
    colour = seen.in_colour or (seen.has_palette and (wanted == "colour" or (named is not None and named.colours)))
    seen = seen.as_colours() if colour else seen
    void = _ignored(ignore, colour)
    if wanted in (None, "index") and not colour:
        refuse_codings(seen, void)
        refuse_specks(seen, void)
    if named is not None and named.values is not None:
        return _named(seen, wanted, void, named, named.values, colour)
    values = [value for value in seen.values if value != void]
    if wanted is None and values:
        refuse_lossy(seen)
    kind = wanted or _told(seen, values, colour)
    _require_kind(kind, seen, values, colour)
    if kind == "binary":
        refuse_faint(seen, void)
    coding = {"binary": _binary, "index": _index, "grey": _levels, "colour": _levels}[kind](
        kind, values, void, len(named.names) if named else None
    )
    if named is not None and len(named.names) != coding.count:
        raise UserError(
            f"--classes names {len(named.names)} classes, and the masks have {coding.count} ({coding.describe()}): "
            "give as many names, or names with their values."
        )
    return coding


def require_fit(coding: MaskCoding, seen: Seen, ignore: Sequence[int] | None = None) -> None:
    """Refuse masks whose files do not have the coding that is known of others, where their values do not show it.

    Args:
        coding: Meaning of the values, as a run has learnt it.
        seen: Facts of all files.
        ignore: Value that the user calls "not labelled".

    Raises:
        UserError: They have another coding.
    """
    if coding.kind == "binary":
        refuse_faint(seen, coding.ignore)
    elif coding.kind == "index" and ignore is None and not seen.in_colour:
        refuse_kinds(seen)
        refuse_codings(seen)
        marked = set(seen.values) - {0}
        if coding.ignore == VOID and marked == {VOID}:
            raise UserError(
                f"the masks have no value but 0 and 255, and {coding.describe()}: no pixel would be of a class but the "
                "first; store them with the numbers of the classes."
            )


def _named(
    seen: Seen, wanted: Coding | None, void: int | None, named: NamedClasses, values: tuple[int, ...], colour: bool
) -> MaskCoding:
    """Return the coding that a file of classes with values says."""
    if named.colours != colour:
        raise UserError(
            f"--classes gives {'colours' if named.colours else 'values'} and the masks are "
            f"{'in colour' if colour else 'grey'}: give a file that fits the masks."
        )
    kind: Coding = "colour" if colour else wanted or "index"
    if kind == "index" and void is None and VOID in seen.values and VOID not in values:
        void = VOID  # where nobody has said another
    return MaskCoding(kind, values, void)


def _ignored(ignore: Sequence[int] | None, colour: bool) -> int | None:
    if ignore is None:
        return None
    if colour and len(ignore) == 3 and max(ignore) < 256:
        return ignore[0] << 16 | ignore[1] << 8 | ignore[2]
    if not colour and len(ignore) == 1:
        return ignore[0]
    expected = "red, green and blue from 0 to 255, as the masks are in colour" if colour else "one grey value"
    raise UserError(f"--ignore is {' '.join(map(str, ignore))}, expected {expected}.")


def _told(seen: Seen, values: list[int], colour: bool) -> Coding:
    """Tell the kind of masks from their values."""
    if colour:
        if len(values) <= MOST_CLASSES:
            refuse_blurred_colours(seen)
        return "colour"
    if is_binary(seen, values):
        return "binary"
    if seen.has_palette:  # the number of a colour in its palette
        return "index"
    if not any(file.bits == 16 for file in seen.files):
        refuse_nearly(seen, values)
        refuse_blurred(seen, values)
    below = [value for value in values if value != VOID]
    gaps = [b - a for a, b in pairwise(values)]
    spread = len(values) > 1 and min(gaps) >= SPREAD and len(values) <= FEW_LEVELS and max(below) >= HIGH
    return "grey" if spread else "index"


def _require_kind(kind: Coding, seen: Seen, values: list[int], colour: bool) -> None:
    if (kind == "colour") != colour:
        raise UserError(
            f"--mask-values is {kind!r} and the masks are {'in colour' if colour else 'grey'}: leave it out, or "
            "convert the masks."
        )
    deep = next((file.name for file in seen.files if file.bits == 16), "")
    if deep and kind != "index":
        raise UserError(
            f"mask {deep} has 16 bits a pixel, which are read as numbers of classes only, and its values reach "
            f"{max(values, default=0)}: store it with 8 bits."
        )
    if not values:
        raise UserError("no pixel of the masks is labelled: give other masks, or another --ignore.")


def _binary(kind: Coding, values: list[int], void: int | None, names: int | None) -> MaskCoding:
    top = 1 if max(values) == 1 else 255
    if len({value >= min(top, MIDDLE) for value in values}) < 2:
        raise UserError(
            f"all labelled pixels of the masks are of one class (values {min(values)} to {max(values)}): masks of two "
            "classes have 0 and 255; check the masks."
        )
    return MaskCoding(kind, (0, top), void)


def _index(kind: Coding, values: list[int], void: int | None, names: int | None) -> MaskCoding:
    void = VOID if void is None and VOID in values else void
    top = max((value for value in values if value != void), default=0)
    count = max(top + 1, (names or 0) + (void is not None and void <= top))
    classes = tuple(value for value in range(count) if value != void)
    if len(classes) > MOST_CLASSES:
        raise UserError(
            f"masks by index have values up to {top}, and {MOST_CLASSES} classes are the most: number them from 0 on, "
            "or say what the values mean with --mask-values grey or --classes."
        )
    if len(classes) < 2:
        raise UserError(
            "all labelled pixels of the masks are of one class: there is nothing to tell apart; check the masks."
        )
    return MaskCoding(kind, classes, void)


def _levels(kind: Coding, values: list[int], void: int | None, names: int | None) -> MaskCoding:
    if len(values) > MOST_CLASSES:
        raise UserError(
            f"the masks have {len(values)} {'colours' if kind == 'colour' else 'grey levels'}, and {MOST_CLASSES} "
            "classes are the most: masks have one for each class; store them without loss (PNG)."
        )
    if len(values) < 2:
        raise UserError("all labelled pixels of the masks have one value: there is nothing to tell apart; check them.")
    return MaskCoding(kind, tuple(values), void)
