"""Write predicted masks to files, and draw masks over their images."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from paucal.data.masks.coding import IGNORED, MaskCoding
from paucal.data.masks.mask_files import unpack_colour
from paucal.tasks.segmentation.crops import MASK
from paucal.tasks.segmentation.model import SegmentationCard
from paucal.types import Batch
from paucal.wording import replace_undrawable, shorten
from paucal.writing import write_atomically

OPACITY = 0.45  # opacity of the class colours over an image
SHOWN_SIDE = 320  # longer side of an image in a comparison, in pixels
GAP, LINE_HEIGHT, LEGEND_HEIGHT = 6, 14, 18  # pixels: gap between images, heights of a line and of a legend row
COLUMN_TITLES = ("image", "labels", "predicted", "mistakes")
MIN_COLUMN_WIDTH = 56  # pixels; wide enough for the title of a column
MAX_NAMES, MAX_LETTERS = 12, 24  # maximum number of names in a legend, and of letters in a name
MAX_CROPS = 8  # maximum number of training crops in the figure of a batch
IGNORED_COLOUR = (128, 128, 128)
WRONG_COLOUR, RIGHT_COLOUR = (214, 39, 40), (44, 160, 44)


def write_mask(folder: Path, key: str, classes: NDArray[np.integer], coding: MaskCoding) -> Path:
    """Write (H, W) class numbers as a PNG with the values of the training masks; return the path of the PNG."""
    return write_png(folder, key, Image.fromarray(coding.decode(classes)))


def write_png(folder: Path, key: str, drawing: Image.Image) -> Path:
    """Write a drawing for the image with this key as a PNG below a folder, and return the path of the PNG."""
    path = png_path(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: drawing.save(file, "PNG"))
    return path


def png_path(folder: Path, key: str) -> Path:
    """Return the path of the PNG for an image key, below a folder."""
    return folder.joinpath(*PurePosixPath(key).with_suffix(".png").parts)


def class_colours(coding: MaskCoding) -> NDArray[np.uint8]:
    """Return the (K, 3) RGB colours of the classes: the colours of coloured masks, else PASCAL VOC's palette."""
    colours = map(unpack_colour, coding.values) if coding.kind == "colour" else map(voc_colour, range(coding.count))
    return np.asarray(list(colours), dtype=np.uint8)


def voc_colour(number: int) -> tuple[int, int, int]:
    """Return the colour of a class in PASCAL VOC's palette, computed from the bits of the class number.

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


def draw_overlay(image: Image.Image, mask: NDArray[np.uint8], colours: NDArray[np.uint8]) -> Image.Image:
    """Draw an (H, W) mask over an image, with the (K, 3) colours of the classes; unlabelled pixels are grey."""
    palette = np.full((IGNORED + 1, 3), IGNORED_COLOUR, dtype=np.float32)
    palette[: len(colours)] = colours
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    return Image.fromarray(((1 - OPACITY) * pixels + OPACITY * palette[mask]).round().astype(np.uint8))


def draw_mistakes(mask: NDArray[np.uint8], predicted: NDArray[np.uint8]) -> Image.Image:
    """Draw correct pixels green, wrong pixels red and unlabelled pixels grey."""
    pixels = np.asarray([WRONG_COLOUR, RIGHT_COLOUR], dtype=np.uint8)[(mask == predicted).astype(np.int64)]
    pixels[mask == IGNORED] = IGNORED_COLOUR
    return Image.fromarray(pixels)


def draw_comparison(
    image: Image.Image, mask: NDArray[np.uint8], predicted: NDArray[np.uint8], colours: NDArray[np.uint8], title: str
) -> Image.Image:
    """Draw an image, its labels, the predictions and the mistakes side by side, under titles and a line of text."""
    views = [
        image.convert("RGB"),
        draw_overlay(image, mask, colours),
        draw_overlay(image, predicted, colours),
        draw_mistakes(mask, predicted),
    ]
    scale = min(1.0, SHOWN_SIDE / max(image.size))
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    resized = [view.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST) for view in views]
    column_width = max(size[0], MIN_COLUMN_WIDTH) + GAP
    page = Image.new("RGB", (4 * column_width - GAP, size[1] + 2 * LINE_HEIGHT), "white")
    draw = ImageDraw.Draw(page)
    draw.text((0, 0), replace_undrawable(title), fill="black")
    for index, (view, heading) in enumerate(zip(resized, COLUMN_TITLES, strict=True)):
        draw.text((index * column_width, LINE_HEIGHT), heading, fill="black")
        page.paste(view, (index * column_width, 2 * LINE_HEIGHT))
    return page


def stack_vertically(images: Sequence[Image.Image]) -> Image.Image:
    """Stack one or more images vertically, with gaps between them."""
    width = max(image.width for image in images)
    page = Image.new("RGB", (width, sum(image.height + GAP for image in images)), "white")
    top = 0
    for image in images:
        page.paste(image, (0, top))
        top += image.height + GAP
    return page


def draw_legend(classes: Sequence[str], colours: NDArray[np.uint8]) -> Image.Image:
    """Draw the names of the first `MAX_NAMES` classes beside the colours of the classes."""
    names = [replace_undrawable(shorten(name, MAX_LETTERS)) for name in classes[:MAX_NAMES]]
    names += [f"and {len(classes) - MAX_NAMES} more"] if len(classes) > MAX_NAMES else []
    width = max(160, *(LEGEND_HEIGHT + 8 * len(name) for name in names))
    page = Image.new("RGB", (width, LEGEND_HEIGHT * len(names)), "white")
    draw = ImageDraw.Draw(page)
    for index, name in enumerate(names):
        if index < min(len(classes), MAX_NAMES):
            colour = tuple(int(value) for value in colours[index])
            draw.rectangle((0, index * LEGEND_HEIGHT + 2, 12, index * LEGEND_HEIGHT + 14), fill=colour, outline="black")  # type: ignore[arg-type]
        draw.text((LEGEND_HEIGHT, index * LEGEND_HEIGHT + 2), name, fill="black")
    return page


def draw_crops(batch: Batch, card: SegmentationCard) -> Image.Image:
    """Draw up to eight training crops as the network sees them, and below them the same crops with their masks."""
    normalisation, colours = card.preprocessing.normalisation, class_colours(card.coding)
    shown = normalisation.to_display(batch.views[0][:MAX_CROPS])
    crops = [Image.fromarray(crop.permute(1, 2, 0).contiguous().numpy()) for crop in shown]
    masks = [mask.numpy() for mask in (batch.label_maps or {})[MASK][:MAX_CROPS]]
    width, height = crops[0].size
    page = Image.new("RGB", (len(crops) * (width + GAP), 2 * height + GAP), "white")
    for index, (crop, mask) in enumerate(zip(crops, masks, strict=True)):
        page.paste(crop, (index * (width + GAP), 0))
        page.paste(draw_overlay(crop, mask, colours), (index * (width + GAP), height + GAP))
    return stack_vertically([page, draw_legend(card.classes, colours)])
