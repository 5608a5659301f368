"""What the values of masks mean: which class each one is, and which pixels nobody has labelled."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from paucal.data.masks.class_names import NamedClasses
from paucal.data.masks.pixels import unpacked
from paucal.types import UserError

Coding = Literal["index", "binary", "grey", "colour"]
IGNORED = 255  # the class number of pixels that count for nothing
MOST_CLASSES = 255
VOID = 255  # the grey value that means "not labelled" in masks by index, as in PASCAL VOC
SPREAD, HIGH, FEW_LEVELS = 8, 64, 32  # how grey levels that stand for classes are told from indices
NOISY, NOISY_TOP = (
    32,
    200,
)  # more levels than that, up to white: a photograph, or a mask that was resized or stored lossy
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
            middle = min(self.values[1], MIDDLE)
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
        ignored = _shown(self.ignore) if self.kind == "colour" else str(self.ignore)
        return f"{words}; {ignored} is not labelled"

    def _refuse(self, value: int, name: str) -> None:
        shown = _shown(value) if self.kind == "colour" else str(value)
        raise UserError(
            f"mask {name} has the value {shown}, and the classes are {self.describe()}: correct the mask, name the "
            "class in --classes, or give --ignore where the value means that nobody has labelled."
        )


@dataclass(frozen=True)
class Seen:
    """What a look at all masks has shown.

    Attributes:
        values: sorted distinct values.
        colour: whether a mask is in colour.
        palette: whether one has a palette.
        lossy: name of a mask whose format keeps values only nearly; "" for none.
        deep: name of a mask of 16 bits; "" for none.
    """

    values: tuple[int, ...]
    colour: bool = False
    palette: bool = False
    lossy: str = ""
    deep: str = ""


def find_coding(
    seen: Seen, wanted: Coding | None = None, ignore: Sequence[int] | None = None, named: NamedClasses | None = None
) -> MaskCoding:
    """Choose what the values of masks mean.

    Args:
        seen: what the masks hold.
        wanted: what the user says; None to tell it from the values.
        ignore: the value, or the red, green and blue, that means "not labelled".
        named: classes from a file.

    Raises:
        UserError: the values do not fit what was said, or nothing sensible can be told from them.
    """
    void = _ignored(ignore, seen.colour)
    if named is not None and named.values is not None:
        kind: Coding = "colour" if seen.colour else wanted or "index"
        if named.colours != seen.colour:
            raise UserError(
                f"--classes gives {'colours' if named.colours else 'values'} and the masks are "
                f"{'in colour' if seen.colour else 'grey'}: give a file that fits the masks."
            )
        return MaskCoding(kind, named.values, _free_void(void, named.values, seen.values) if kind == "index" else void)
    values = [value for value in seen.values if value != void]
    kind = wanted or _told(seen, values)
    _require_kind(kind, seen, values)
    coding = {"binary": _binary, "index": _index, "grey": _levels, "colour": _levels}[kind](
        kind, values, void, len(named.names) if named else None
    )
    if named is not None and len(named.names) != coding.count:
        raise UserError(
            f"--classes names {len(named.names)} classes, and the masks have {coding.count} ({coding.describe()}): "
            "give as many names, or names with their values."
        )
    return coding


def _ignored(ignore: Sequence[int] | None, colour: bool) -> int | None:
    if ignore is None:
        return None
    if colour and len(ignore) == 3 and max(ignore) < 256:
        return ignore[0] << 16 | ignore[1] << 8 | ignore[2]
    if not colour and len(ignore) == 1:
        return ignore[0]
    expected = "red, green and blue from 0 to 255, as the masks are in colour" if colour else "one grey value"
    raise UserError(f"--ignore is {' '.join(map(str, ignore))}, expected {expected}.")


def _told(seen: Seen, values: list[int]) -> Coding:
    """Tell the kind of masks from their values."""
    if seen.colour:
        return "colour"
    if seen.palette:  # the number of a colour in its palette
        return "index"
    if set(values) <= {0, 255}:
        return "binary"
    if (seen.lossy and max(values) > NOISY) or (len(values) > NOISY and max(values) > NOISY_TOP):
        why = f"{seen.lossy} is in a lossy format" if seen.lossy else "as after blurring or resizing"
        raise UserError(
            f"the masks have {len(values)} grey levels from {min(values)} to {max(values)} ({why}): store masks as PNG "
            "with one value for each class, or say what they mean with --mask-values binary (from 128 on) or index."
        )
    below = [value for value in values if value != VOID]
    gaps = [b - a for a, b in pairwise(values)]
    spread = len(values) > 1 and min(gaps) >= SPREAD and len(values) <= FEW_LEVELS and max(below) >= HIGH
    return "grey" if spread else "index"


def _require_kind(kind: Coding, seen: Seen, values: list[int]) -> None:
    if (kind == "colour") != seen.colour:
        raise UserError(
            f"--mask-values is {kind!r} and the masks are {'in colour' if seen.colour else 'grey'}: leave it out, or "
            "convert the masks."
        )
    if seen.deep and kind != "index":
        raise UserError(
            f"mask {seen.deep} has 16 bits a pixel, which are read as numbers of classes only, and its values reach "
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


def _free_void(void: int | None, classes: Sequence[int], values: Sequence[int]) -> int | None:
    """Return the void of masks by index where nobody has said another."""
    return VOID if void is None and VOID in values and VOID not in classes else void


def _shown(value: int) -> str:
    return "({}, {}, {})".format(*unpacked(value))
