"""Reads mask files without changing their values, and counts the pixels of each value."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.channels.arrays import is_npy, npy_shape, read_npy
from paucal.data.decode import UnreadableImage, open_image, turn_upright, wrap_decoding_errors

GREY, PALETTE, COLOUR = "grey", "palette", "colour"
LOSSY_FORMATS = ("JPEG", "MPO")
MAX_VALUE = 65535  # highest value of a grey mask
GREY_UNIT, WHITE = 0x010101, 0xFFFFFF  # packed colours of grey level 1 and of white


@dataclass(frozen=True)
class RawMask:
    """Pixel values of a mask file, as they are stored."""

    values: NDArray[np.int32]  # (H, W) grey levels, palette indices, or colours as 65536 R + 256 G + B
    kind: str  # "grey", "palette" or "colour"
    bits: int = 8  # bits per value: 1, 8 or 16; 24 for grey levels that are stored in three equal channels
    lossy: bool = False  # whether the format is lossy
    palette: NDArray[np.int32] | None = None  # (256,) packed colours of the palette indices

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.values.shape[0], self.values.shape[1]

    def convert_values(self, in_colour: bool, name: str) -> NDArray[np.int32]:
        """Return packed colours if other masks of the set are in colour, else the stored values."""
        if not in_colour:
            if self.kind == COLOUR:
                raise UnreadableImage(
                    f"mask {name} is in colour, but the masks of this set are grey: store all masks in the same way"
                )
            return self.values
        if self.bits == 16:
            raise UnreadableImage(
                f"mask {name} has 16 bits per pixel, but other masks are in colour: store all masks in the same way"
            )
        if self.palette is not None:
            return self.palette[self.values]
        return self.values if self.kind == COLOUR else self.values * (WHITE if self.bits == 1 else GREY_UNIT)


def read_mask(path: Path, name: str, max_pixels: int | None = None) -> RawMask:
    """Read a mask file and rotate the mask upright; the values are not changed.

    A colour image whose channels are equal everywhere counts as grey. An image with one bit per pixel also counts as
    grey, with the values 0 and 1. Transparency is ignored, unless all pixels have the same colour; in this case, the
    values of the mask are the values of the alpha channel.
    """
    if is_npy(path):
        return _read_array(path, name, max_pixels)
    with open_image(path, f"{name} (a mask)") as image:
        if max_pixels is not None and image.width * image.height > max_pixels:
            raise ValueError(f"the mask has {image.height}x{image.width} pixels, many more than its image")
        lossy = image.format in LOSSY_FORMATS
        if image.format == "WEBP":
            with path.open("rb") as file:
                lossy = b"VP8L" not in file.read(64)  # lossless files have "VP8L" after the RIFF header
        upright, palette = turn_upright(image), None
        values, kind, bits = _stored_values(upright)
        if kind == PALETTE:
            colours = np.zeros((256, 3), dtype=np.uint8)  # colours that are missing from the palette are black
            stored = np.asarray(upright.getpalette("RGB") or [], dtype=np.uint8)[: 3 * 256]
            colours.reshape(-1)[: len(stored)] = stored
            palette = pack_colours(colours)
    return RawMask(values, kind, bits, lossy, palette)


def _read_array(path: Path, name: str, max_pixels: int | None) -> RawMask:
    """Read a mask from a NumPy file: integers in one channel, or three channels of uint8; see `read_mask`."""
    with wrap_decoding_errors(f"{name} (a mask)"):
        shape = npy_shape(path)
        if max_pixels is not None and shape.height * shape.width > max_pixels:
            raise ValueError(f"the mask has {shape.height}x{shape.width} pixels, many more than its image")
        values: NDArray[Any] = read_npy(path)
        if shape.channels == 3 and values.dtype == np.uint8:
            return RawMask(pack_colours(values), COLOUR)
        if shape.channels != 1:
            raise ValueError(
                f"the array has {shape.channels} channels of {values.dtype}, expected 1 channel, or 3 channels of uint8"
            )
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= MAX_VALUE) or (values.dtype.kind == "f" and (values % 1).any()):
            raise ValueError(f"the mask has values from {low} to {high}, expected integers from 0 to {MAX_VALUE}")
    bits = 1 if values.dtype == np.bool_ else 8 if high < 256 else 16
    return RawMask(values[..., 0].astype(np.int32), GREY, bits)


def _stored_values(image: Image.Image) -> tuple[NDArray[np.int32], str, int]:
    """Return the fields `values`, `kind` and `bits` of a `RawMask`."""
    mode = image.mode
    if mode == "F":
        raise ValueError("the mask has floating-point values, expected integers")
    if mode == "1":
        return np.asarray(image).astype(np.int32), GREY, 1
    if mode in ("P", "PA"):
        return np.asarray(image.getchannel(0)).astype(np.int32), PALETTE, 8
    if mode in ("RGBA", "LA") and (alpha_mask := _opacity_mask(image)) is not None:
        return alpha_mask, GREY, 8
    if mode in ("L", "LA", "La"):
        return np.asarray(image.getchannel(0)).astype(np.int32), GREY, 8
    if mode.startswith("I"):
        integers = np.asarray(image).astype(np.int64)
        if integers.min() < 0 or integers.max() > MAX_VALUE:
            raise ValueError(
                f"the mask has values from {integers.min()} to {integers.max()}, expected values from 0 to {MAX_VALUE}"
            )
        return integers.astype(np.int32), GREY, 16
    rgb = np.asarray(image.convert("RGB"))
    if (rgb[..., 0] == rgb[..., 1]).all() and (rgb[..., 0] == rgb[..., 2]).all():
        return rgb[..., 0].astype(np.int32), GREY, 24
    return pack_colours(rgb), COLOUR, 8


def _opacity_mask(image: Image.Image) -> NDArray[np.int32] | None:
    """Return the (H, W) alpha channel if all pixels have the same colour and some are transparent, else None."""
    values = np.asarray(image)
    colours, opacity = values[..., :-1], values[..., -1]
    if opacity.min() == 255 or (colours != colours[0, 0]).any():
        return None
    return opacity.astype(np.int32)


def pack_colours(rgb: NDArray) -> NDArray[np.int32]:
    """Pack (..., 3) colours into the numbers 65536 R + 256 G + B."""
    red, green, blue = np.moveaxis(np.asarray(rgb), -1, 0)
    return (red.astype(np.int32) << 16) | (green.astype(np.int32) << 8) | blue.astype(np.int32)


def unpack_colour(number: int) -> tuple[int, int, int]:
    """Return the red, green and blue of a packed colour."""
    return number >> 16 & 255, number >> 8 & 255, number & 255


@dataclass(frozen=True)
class FileStatistics:
    """Statistics of the values in one mask file; `kind`, `bits` and `lossy` are those of `RawMask`."""

    name: str
    pixel_counts: dict[int, int]  # number of pixels by value (grey level, palette index or packed colour)
    solid_values: frozenset[int]  # values that fill a block of 2x2 pixels; others occur only on edges and lines
    kind: str = GREY
    bits: int = 8
    lossy: bool = False
    palette: dict[int, int] | None = None  # packed colour of each value
    interpolated_pixels: int = 0  # number of pixels with a value between those of the left and right neighbours
    jumps: int = 0  # number of pairs of horizontal neighbours whose values differ by 2 or more

    @cached_property
    def values(self) -> frozenset[int]:
        """All values that occur in the file."""
        return frozenset(self.pixel_counts)

    def as_colours(self) -> "FileStatistics":
        """Return the same statistics with packed colours as values."""
        if self.palette is not None:
            colours = self.palette
        else:
            unit = {COLOUR: 1, GREY: WHITE if self.bits == 1 else GREY_UNIT}[self.kind]
            colours = {value: value * unit for value in self.pixel_counts}
        pixels: Counter[int] = Counter()
        for value, count in self.pixel_counts.items():
            pixels[colours[value]] += count
        return replace(self, pixel_counts=pixels, solid_values=frozenset(colours[value] for value in self.solid_values))


@dataclass(frozen=True)
class MaskStatistics:
    """Statistics of the values in all mask files of a set."""

    files: tuple[FileStatistics, ...]

    @cached_property
    def pixel_counts(self) -> dict[int, int]:
        """Number of pixels with each value in all files, sorted by value."""
        total: Counter[int] = Counter()
        for file in self.files:
            total.update(file.pixel_counts)
        return dict(sorted(total.items()))

    @property
    def values(self) -> tuple[int, ...]:
        """All values that occur in any file, sorted."""
        return tuple(self.pixel_counts)

    @cached_property
    def solid_values(self) -> frozenset[int]:
        """Values that fill a block of 2x2 pixels in at least one file."""
        return frozenset(value for file in self.files for value in file.solid_values)

    @property
    def has_colour(self) -> bool:
        """Whether at least one file is in colour."""
        return any(file.kind == COLOUR for file in self.files)

    @property
    def has_palette(self) -> bool:
        """Whether at least one file has a palette."""
        return any(file.kind == PALETTE for file in self.files)

    def as_colours(self) -> "MaskStatistics":
        """Return the same statistics with packed colours as values."""
        return MaskStatistics(tuple(file.as_colours() for file in self.files))

    def files_with_value(self, value: int) -> list[FileStatistics]:
        """Return the files that contain a value."""
        return [file for file in self.files if value in file.values]


def compute_file_statistics(raw: RawMask, name: str) -> FileStatistics:
    """Compute the statistics of a mask file's values."""
    if int(raw.values.max(initial=0)) < 1 << 16:  # counting all possible values is faster than sorting
        values, numbers = np.arange(int(raw.values.max(initial=0)) + 1), raw.values.astype(np.int64)
    else:
        values = np.unique(raw.values)
        numbers = np.searchsorted(values, raw.values)  # faster than `return_inverse` for few colours
    counts = np.bincount(numbers.ravel(), minlength=len(values))
    corner = numbers[:-1, :-1]
    is_uniform = (corner == numbers[1:, :-1]) & (corner == numbers[:-1, 1:]) & (corner == numbers[1:, 1:])
    solid = np.bincount(corner[is_uniform], minlength=len(values)) > 0
    slope = np.diff(numbers, axis=1)
    indices = np.flatnonzero(counts).tolist()
    return FileStatistics(
        name=name,
        pixel_counts={int(values[index]): int(counts[index]) for index in indices},
        solid_values=frozenset(int(values[index]) for index in indices if solid[index]),
        kind=raw.kind,
        bits=raw.bits,
        lossy=raw.lossy,
        palette=None if raw.palette is None else {int(values[p]): int(raw.palette[values[p]]) for p in indices},
        interpolated_pixels=int(
            ((slope[:, :-1] > 0) & (slope[:, 1:] > 0) | (slope[:, :-1] < 0) & (slope[:, 1:] < 0)).sum()
        ),
        jumps=int((np.abs(slope) > 1).sum()),
    )


def describe_files(files: Iterable[FileStatistics]) -> str:
    """Return the name of the first file and the number of other files as text, such as "a.png and 3 others"."""
    names = [file.name for file in files]
    n_others = len(names) - 1
    return names[0] if not n_others else f"{names[0]} and {n_others} other{'s' if n_others > 1 else ''}"
