"""Masks drawn over their images, for people."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from paucal.data.masks.coding import IGNORED, MaskCoding
from paucal.data.masks.pixels import unpacked
from paucal.wording import shortened

STRENGTH = 0.45  # of a class's colour over the image
SHOWN_SIDE = 320  # pixels of an image in a sheet
GAP, LINE, LEGEND = 6, 14, 18  # pixels
COLUMNS, NARROWEST = (
    ("image", "labels", "answers", "mistakes"),
    56,
)  # titles of a sheet, and pixels that the longest takes
MOST_NAMES, MOST_NAME = 12, 24
IGNORED_COLOUR = (128, 128, 128)
WRONG, RIGHT = (214, 39, 40), (44, 160, 44)


def palette(coding: MaskCoding) -> NDArray[np.uint8]:
    """Return the (K, 3) colours of classes: those of the masks, else PASCAL VOC's, black first."""
    if coding.kind == "colour":
        return np.asarray([unpacked(value) for value in coding.values], dtype=np.uint8)
    return np.asarray([voc_colour(number) for number in range(coding.count)], dtype=np.uint8)


def voc_colour(number: int) -> tuple[int, int, int]:
    """Return the colour of a class in PASCAL VOC's palette, whose bits are those of its number.

    Example:
        >>> [voc_colour(number) for number in range(4)]
        [(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0)]
    """
    red = green = blue = 0
    for bit in range(8):
        red |= (number & 1) << 7 - bit
        green |= (number >> 1 & 1) << 7 - bit
        blue |= (number >> 2 & 1) << 7 - bit
        number >>= 3
    return red, green, blue


def overlay(image: Image.Image, mask: NDArray[np.uint8], colours: NDArray[np.uint8]) -> Image.Image:
    """Return an image under the colours of its pixels' classes; unlabelled pixels are grey.

    Args:
        image: RGB.
        mask: (H, W) class numbers, `IGNORED` where nobody has labelled.
        colours: (K, 3).
    """
    table = np.full((IGNORED + 1, 3), IGNORED_COLOUR, dtype=np.float32)
    table[: len(colours)] = colours
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    return Image.fromarray(((1 - STRENGTH) * pixels + STRENGTH * table[mask]).round().astype(np.uint8))


def differences(mask: NDArray[np.uint8], found: NDArray[np.uint8]) -> Image.Image:
    """Return a picture of the answers: green where they are right, red where not, grey where nobody has labelled."""
    picture = np.asarray([WRONG, RIGHT], dtype=np.uint8)[(mask == found).astype(np.int64)]
    picture[mask == IGNORED] = IGNORED_COLOUR
    return Image.fromarray(picture)


def comparison(
    image: Image.Image,
    mask: NDArray[np.uint8],
    found: NDArray[np.uint8],
    colours: NDArray[np.uint8],
    title: str,
) -> Image.Image:
    """Return image, labels, answers and mistakes of one image side by side under their titles and a line of text."""
    shown = [
        image.convert("RGB"),
        overlay(image, mask, colours),
        overlay(image, found, colours),
        differences(mask, found),
    ]
    scale = min(1.0, SHOWN_SIDE / max(image.size))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    small = [one.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST) for one in shown]
    column = max(size[0], NARROWEST) + GAP
    sheet = Image.new("RGB", (4 * column - GAP, size[1] + 2 * LINE), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((0, 0), _plain(title), fill="black")
    for place, (one, heading) in enumerate(zip(small, COLUMNS, strict=True)):
        draw.text((place * column, LINE), heading, fill="black")
        sheet.paste(one, (place * column, 2 * LINE))
    return sheet


def stacked(pictures: Sequence[Image.Image]) -> Image.Image:
    """Return pictures one below the other; at least one."""
    width = max(one.width for one in pictures)
    sheet = Image.new("RGB", (width, sum(one.height + GAP for one in pictures)), "white")
    top = 0
    for one in pictures:
        sheet.paste(one, (0, top))
        top += one.height + GAP
    return sheet


def legend(classes: Sequence[str], colours: NDArray[np.uint8]) -> Image.Image:
    """Return the names of the first classes beside their colours."""
    names = [_plain(shortened(name, MOST_NAME)) for name in classes[:MOST_NAMES]]
    names += [f"and {len(classes) - MOST_NAMES} more"] if len(classes) > MOST_NAMES else []
    width = max(160, *(LEGEND + 8 * len(name) for name in names))
    sheet = Image.new("RGB", (width, LEGEND * len(names)), "white")
    draw = ImageDraw.Draw(sheet)
    for place, name in enumerate(names):
        if place < min(len(classes), MOST_NAMES):
            colour = tuple(int(value) for value in colours[place])
            draw.rectangle((0, place * LEGEND + 2, 12, place * LEGEND + 14), fill=colour, outline="black")  # type: ignore[arg-type]
        draw.text((LEGEND, place * LEGEND + 2), name, fill="black")
    return sheet


def _plain(text: str) -> str:
    """Return text that Pillow's own font has letters for."""
    return text.encode("latin-1", errors="replace").decode("latin-1")
