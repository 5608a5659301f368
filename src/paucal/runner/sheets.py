"""Contact sheets: rows of images as square tiles, with a heading above each row and a caption below each tile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont, ImageOps

from paucal.data.decode import UnreadableImage

MAX_COLUMNS, MAX_ROWS = 10, 60  # largest number of tiles per row, and of rows per sheet
Font = ImageFont.FreeTypeFont | None  # None is Pillow's built-in font


@dataclass(frozen=True)
class SheetStyle:
    """Sizes of a sheet in pixels: side of a tile, gap between tiles, and heights of headings and captions."""

    side: int
    gap: int
    heading: int
    caption: int = 0
    fonts: tuple[Font, Font] = (None, None)  # fonts of headings and captions


def draw_sheet(
    rows: Sequence[tuple[str, Sequence[tuple[int, str]]]],
    read: Callable[[int], Image.Image],
    style: SheetStyle,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Image.Image:
    """Draw rows of (heading, [(position, caption), ...]); the tile of an image that cannot be read is empty.

    `advance` is called with the number of drawn tiles and the total.
    """
    step, height = style.side + style.gap, style.heading + style.side + style.caption + style.gap
    page = Image.new("RGB", (MAX_COLUMNS * step + style.gap, len(rows) * height + style.gap), "white")
    draw, n_drawn, total = ImageDraw.Draw(page), 0, sum(len(members) for _, members in rows)
    for number, (heading, members) in enumerate(rows):
        top = style.gap + number * height
        draw.text((style.gap, top), heading, fill="black", font=style.fonts[0])
        for column, (position, caption) in enumerate(members):
            left = style.gap + column * step
            if (tile := read_tile(read, position, style.side)) is not None:
                page.paste(tile, (left, top + style.heading))
            draw.text((left, top + style.heading + style.side), caption, fill="#444444", font=style.fonts[1])
            n_drawn += 1
            advance(n_drawn, total)
    return page


def read_tile(read: Callable[[int], Image.Image], position: int, side: int) -> Image.Image | None:
    """Return an image, resized and padded with white to a square of `side` pixels; None if it cannot be read."""
    try:
        picture = read(position)
    except UnreadableImage:
        return None
    resampling = Image.Resampling.NEAREST if max(picture.size) < side else Image.Resampling.LANCZOS
    return ImageOps.pad(picture.convert("RGB"), (side, side), resampling, color="white")
