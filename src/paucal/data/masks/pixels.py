"""The values of a mask file as they are stored: no colours are converted, nothing is turned or scaled."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paucal.data.decode import UnreadableImage, open_image, turned_upright

GREY, PALETTE, COLOUR = "grey", "palette", "colour"
LOSSY = ("JPEG", "MPO")


@dataclass(frozen=True)
class RawMask:
    """What a mask file holds.

    Attributes:
        values: (H, W) int32: grey levels, indices of a palette, or colours as 65536 R + 256 G + B.
        kind: "grey", "palette" or "colour".
        bits: of a grey value: 1, 8 or 16; 24 of a grey one that is stored with three channels.
        lossy: whether its format keeps values only nearly.
        palette: (256,) packed colours of a palette's numbers; None without one.
    """

    values: NDArray[np.int32]
    kind: str
    bits: int = 8
    lossy: bool = False
    palette: NDArray[np.int32] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.values.shape[0], self.values.shape[1]

    def among(self, colour: bool, name: str) -> NDArray[np.int32]:
        """Return the values as those of a set of masks that is in colour, or is not.

        Args:
            colour: whether a mask of the set is in colour; the levels of a grey one are colours then.
            name: of the mask.

        Raises:
            UnreadableImage: it does not go with the others.
        """
        if not colour:
            if self.kind == COLOUR:
                raise UnreadableImage(f"mask {name} is in colour, and the masks of this set are grey: store all alike")
            return self.values
        if self.bits == 16:
            raise UnreadableImage(f"mask {name} has 16 bits a pixel, and others are in colour: store all alike")
        if self.palette is not None:
            return self.palette[self.values]
        white = 0xFFFFFF if self.bits == 1 else 0x010101
        return self.values * white if self.kind == GREY else self.values


def read_raw(path: Path, name: str, most: int | None = None) -> RawMask:
    """Read a mask.

    A colour image whose channels are equal everywhere counts as grey, and so does one bit per pixel (0 and 1).
    Transparency is dropped.

    Args:
        path: of the file.
        name: how it is called in messages.
        most: pixels it may have; None for as many as any image.

    Raises:
        UnreadableImage: it is no image, is damaged, holds floats, or has more pixels.
    """
    with open_image(path, f"{name} (a mask)") as image:
        if most is not None and image.width * image.height > most:
            raise ValueError(f"it has {image.height}x{image.width} pixels, many more than its image")
        lossy = image.format in LOSSY or (image.format == "WEBP" and not _lossless_webp(path))
        upright = turned_upright(image)
        values, kind, bits = _values(upright)
        palette = _palette(upright) if kind == PALETTE else None
    return RawMask(values, kind, bits, lossy, palette)


def _values(image: Image.Image) -> tuple[NDArray[np.int32], str, int]:
    mode = image.mode
    if mode == "F":
        raise ValueError("it holds floats, and a mask holds whole numbers")
    if mode == "1":
        return np.asarray(image).astype(np.int32), GREY, 1
    if mode in ("P", "PA"):
        return np.asarray(image.getchannel(0)).astype(np.int32), PALETTE, 8
    if mode in ("L", "LA", "La"):
        return np.asarray(image.getchannel(0)).astype(np.int32), GREY, 8
    if mode.startswith("I"):
        return _whole(np.asarray(image)), GREY, 16
    rgb = np.asarray(image.convert("RGB"))
    if (rgb[..., 0] == rgb[..., 1]).all() and (rgb[..., 0] == rgb[..., 2]).all():
        return rgb[..., 0].astype(np.int32), GREY, 24
    return packed(rgb), COLOUR, 8


def _palette(image: Image.Image) -> NDArray[np.int32]:
    """Return the colours of a palette; numbers beyond its end are black."""
    colours = np.zeros((256, 3), dtype=np.uint8)
    stored = np.asarray(image.getpalette("RGB") or [], dtype=np.uint8)[: 3 * 256]
    colours.reshape(-1)[: len(stored)] = stored
    return packed(colours)


def _whole(values: NDArray) -> NDArray[np.int32]:
    wide = values.astype(np.int64)
    if wide.min() < 0 or wide.max() > 65535:
        raise ValueError(f"it holds values from {wide.min()} to {wide.max()}, and 0 to 65535 are read")
    return wide.astype(np.int32)


def packed(rgb: NDArray) -> NDArray[np.int32]:
    """Return (..., 3) colours as single numbers.

    Example:
        >>> packed(np.array([[0, 0, 255], [128, 0, 0]])).tolist()
        [255, 8388608]
    """
    red, green, blue = np.moveaxis(np.asarray(rgb), -1, 0)
    return (red.astype(np.int32) << 16) | (green.astype(np.int32) << 8) | blue.astype(np.int32)


def unpacked(number: int) -> tuple[int, int, int]:
    """Return the red, green and blue of a packed colour."""
    return number >> 16 & 255, number >> 8 & 255, number & 255


def _lossless_webp(path: Path) -> bool:
    """Return whether a WebP file says that it is lossless ("VP8L" after the RIFF header)."""
    with path.open("rb") as file:
        return b"VP8L" in file.read(64)
