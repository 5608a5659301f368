"""What each mask file of a set holds, measured one by one, so that files of different codings can be told apart."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paucal.data.masks.pixels import COLOUR, GREY, PALETTE, RawMask


@dataclass(frozen=True)
class FileFacts:
    """What one mask file holds.

    Attributes:
        name: Name of the file, for messages.
        pixels: Pixels of each value: a grey level, a number of a palette, or a packed colour.
        solid: Values that fill a block of 2x2 pixels somewhere; the others occur on edges and lines alone.
        kind: "grey", "palette" or "colour".
        bits: Bits of a pixel.
        lossy: Whether the format keeps values only nearly.
        palette: Packed colour of each value, where the file has a palette.
        steps: Pixels whose value lies between those to the left and to the right, as interpolation leaves them.
        jumps: Pairs of neighbours in a row whose values differ by 2 or more.
    """

    name: str
    pixels: dict[int, int]
    solid: frozenset[int]
    kind: str = GREY
    bits: int = 8
    lossy: bool = False
    palette: dict[int, int] | None = None
    steps: int = 0
    jumps: int = 0

    @cached_property
    def values(self) -> frozenset[int]:
        """All values."""
        return frozenset(self.pixels)

    def as_colours(self) -> "FileFacts":
        """Return the same with packed colours as values."""
        if self.palette is not None:
            table = self.palette
        else:
            unit = {COLOUR: 1, GREY: 0xFFFFFF if self.bits == 1 else 0x010101}[self.kind]
            table = {value: value * unit for value in self.pixels}
        pixels: dict[int, int] = {}
        for value, count in self.pixels.items():
            pixels[table[value]] = pixels.get(table[value], 0) + count
        return replace(self, pixels=pixels, solid=frozenset(table[value] for value in self.solid))


@dataclass(frozen=True)
class Seen:
    """What a look at all masks of a set has shown.

    Attributes:
        files: Facts of each file.
    """

    files: tuple[FileFacts, ...]

    @cached_property
    def pixels(self) -> dict[int, int]:
        """Pixels of each value in all files, sorted by value."""
        total: dict[int, int] = {}
        for file in self.files:
            for value, count in file.pixels.items():
                total[value] = total.get(value, 0) + count
        return dict(sorted(total.items()))

    @property
    def values(self) -> tuple[int, ...]:
        """All values, sorted."""
        return tuple(self.pixels)

    @cached_property
    def solid(self) -> frozenset[int]:
        """Values that are solid in a file."""
        return frozenset(value for file in self.files for value in file.solid)

    @property
    def in_colour(self) -> bool:
        """Whether a file is in colour."""
        return any(file.kind == COLOUR for file in self.files)

    @property
    def has_palette(self) -> bool:
        """Whether a file has a palette."""
        return any(file.kind == PALETTE for file in self.files)

    def as_colours(self) -> "Seen":
        """Return the same with packed colours as values."""
        return Seen(tuple(file.as_colours() for file in self.files))

    def with_value(self, value: int) -> list[FileFacts]:
        """Return the files that a value occurs in."""
        return [file for file in self.files if value in file.values]


def facts_of(raw: RawMask, name: str) -> FileFacts:
    """Return what a mask file holds."""
    values, numbers = _numbered(raw.values)
    counts = np.bincount(numbers.ravel(), minlength=len(values))
    corner = numbers[:-1, :-1]
    same = (corner == numbers[1:, :-1]) & (corner == numbers[:-1, 1:]) & (corner == numbers[1:, 1:])
    solid = np.bincount(corner[same], minlength=len(values)) > 0
    slope = np.diff(numbers, axis=1)
    present = np.flatnonzero(counts).tolist()
    return FileFacts(
        name=name,
        pixels={int(values[place]): int(counts[place]) for place in present},
        solid=frozenset(int(values[place]) for place in present if solid[place]),
        kind=raw.kind,
        bits=raw.bits,
        lossy=raw.lossy,
        palette=None if raw.palette is None else {int(values[p]): int(raw.palette[values[p]]) for p in present},
        steps=int(((slope[:, :-1] > 0) & (slope[:, 1:] > 0) | (slope[:, :-1] < 0) & (slope[:, 1:] < 0)).sum()),
        jumps=int((np.abs(slope) > 1).sum()),
    )


def _numbered(values: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the values of a mask in order, and for each pixel the place of its value among them."""
    if int(values.max(initial=0)) < 1 << 16:  # quicker than sorting
        return np.arange(int(values.max(initial=0)) + 1), values.astype(np.int64)
    found = np.unique(values)
    return found.astype(np.int64), np.searchsorted(found, values)  # quicker than `return_inverse` for few colours


def names_of(files: Sequence[FileFacts] | Iterable[FileFacts]) -> str:
    """Return the name of the first file and the number of others."""
    names = [file.name for file in files]
    others = len(names) - 1
    return names[0] if not others else f"{names[0]} and {others} other{'s' if others > 1 else ''}"
