"""Thumbnails: single ones for a page, and a sheet of a few images of every class."""

import io

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from paucal.data.decode import UnreadableImage
from paucal.data.images import ImageSet, Store

TILE, COLUMNS, MOST_ROWS = 88, 10, 60
_GAP, _NAME = 4, 16
_QUALITY = 82


def thumbnail(store: Store, position: int, side: int = TILE) -> Image.Image | None:
    """Return an image within a square, with its own shape on white; None where it cannot be read."""
    try:
        picture = store.read(position)
    except UnreadableImage:
        return None
    enlarged = max(picture.size) < side
    way = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    return ImageOps.pad(picture, (side, side), way, color="white")


def as_jpeg(picture: Image.Image) -> bytes:
    """Return the bytes of a JPEG."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


def contact_sheet(images: ImageSet, seed: int = 0) -> Image.Image:
    """Draw up to ten images of every class, a row each, drawn by chance; of an unlabelled set sixty images.

    Of more than sixty classes the first sixty are shown.
    """
    generator = np.random.default_rng(seed)
    rows: list[tuple[str, list[int]]] = []
    if images.classes:
        for label, name in enumerate(images.classes[:MOST_ROWS]):
            members = images.members(label)
            chosen = np.sort(generator.permutation(members)[:COLUMNS])
            rows.append((f"{name} ({len(members)})", chosen.tolist()))
    else:
        some = np.sort(generator.permutation(len(images))[: 6 * COLUMNS]).tolist()
        rows = [("", some[begin : begin + COLUMNS]) for begin in range(0, len(some), COLUMNS)]
    height = TILE + _GAP + (_NAME if images.classes else 0)
    page = Image.new("RGB", (COLUMNS * (TILE + _GAP) + _GAP, len(rows) * height + _GAP), "white")
    draw = ImageDraw.Draw(page)
    for number, (name, members) in enumerate(rows):
        top = _GAP + number * height
        if images.classes:
            draw.text((_GAP, top), name.encode("ascii", "replace").decode()[:120], fill="black")
            top += _NAME
        for column, position in enumerate(members):
            tile = thumbnail(images.store, position)
            if tile is not None:
                page.paste(tile, (_GAP + column * (TILE + _GAP), top))
    return page
