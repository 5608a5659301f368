"""A contact sheet of answers: images of each class in a row, from the surest to the least sure."""

from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from paucal.data.decode import UnreadableImage
from paucal.models.card import ModelCard
from paucal.verbs.predict.asking import Block
from paucal.wording import percent, shortened, showable

TILE, COLUMNS, MOST_ROWS = 112, 10, 60
SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
NONE = "none of the classes"
_GAP, _HEADING, _CAPTION = 6, 22, 16
_QUALITY = 88

Row = tuple[str, int, list[tuple[int, float]]]  # heading, images in all, positions with probabilities


def sheet_rows(blocks: Iterable[Block], card: ModelCard) -> list[Row]:
    """Return which images stand for each class, most frequent classes first, images evenly spread by probability.

    An image with several labels stands in the row of each, one without in a last row of its own.
    """
    held: dict[int, list[tuple[NDArray[np.int64], NDArray[np.float32]]]] = {}
    start = 0
    for block in blocks:
        positions, shares = start + np.flatnonzero(block.readable), block.shares.numpy()
        start += len(block)
        for label, members in _members(shares, card).items():
            likeliest = shares[members].max(1, initial=0) if label < 0 else shares[members, label]
            held.setdefault(label, []).append((positions[members], likeliest))
    rows = {label: [np.concatenate(part) for part in zip(*parts, strict=True)] for label, parts in held.items()}
    order = sorted(rows, key=lambda label: (label < 0, -len(rows[label][0]), label))
    return [_row(NONE if label < 0 else card.classes[label], *rows[label]) for label in order]


def draw_sheet(rows: list[Row], read: Callable[[int], Image.Image], advance: Callable[[int, int], None]) -> Image.Image:
    """Draw the rows, at most sixty; each image in its own shape on white, its probability below.

    Args:
        rows: Rows of `sheet_rows`.
        read: Returns the image at a position; one that can no longer be read leaves its place empty.
        advance: Function that is called with (tiles drawn, tiles in all).
    """
    shown, total = rows[:MOST_ROWS], sum(len(row[2]) for row in rows[:MOST_ROWS])
    height = _HEADING + TILE + _CAPTION + _GAP
    page = Image.new("RGB", (COLUMNS * (TILE + _GAP) + _GAP, len(shown) * height + _GAP), "white")
    draw, done = ImageDraw.Draw(page), 0
    for number, (name, count, members) in enumerate(shown):
        top = _GAP + number * height
        heading = f"{shortened(showable(name), 100)} ({count})"
        draw.text((_GAP, top), heading.encode(errors="replace").decode(), fill="black", font=_font(15))
        for column, (position, share) in enumerate(members):
            left = _GAP + column * (TILE + _GAP)
            _paste(page, read, position, (left, top + _HEADING))
            draw.text((left, top + _HEADING + TILE), percent(share, ".0f"), fill="#444444", font=_font(11))
            done += 1
            advance(done, total)
    return page


def save_sheet(page: Image.Image, path: Path) -> Callable[[object], None]:
    """Return what writes a sheet into an open file, in the format that the path's ending says."""
    kind = SUFFIXES[path.suffix.lower()]
    return lambda file: page.save(file, kind, **({"quality": _QUALITY} if kind == "JPEG" else {}))  # type: ignore[arg-type]


def _members(shares: NDArray[np.float32], card: ModelCard) -> dict[int, NDArray[np.int64]]:
    """Return the rows of each class that is an answer; -1 for those without one."""
    if card.thresholds is None:
        answers = np.zeros(shares.shape, dtype=bool)
        answers[np.arange(len(shares)), shares.argmax(1)] = True
    else:
        answers = shares >= np.asarray(card.thresholds, dtype=np.float32)
    found = {int(label): np.flatnonzero(answers[:, label]) for label in np.flatnonzero(answers.any(0))}
    without = np.flatnonzero(~answers.any(1))
    return found | ({-1: without} if len(without) else {})


def _row(name: str, positions: NDArray[np.int64], shares: NDArray[np.float32]) -> Row:
    order = np.argsort(-shares, kind="stable")
    some = order[np.linspace(0, len(order) - 1, min(COLUMNS, len(order))).round().astype(int)]
    return name, len(order), [(int(positions[place]), float(shares[place])) for place in some]


def _paste(page: Image.Image, read: Callable[[int], Image.Image], position: int, corner: tuple[int, int]) -> None:
    try:
        picture = read(position)
    except UnreadableImage:
        return
    way = Image.Resampling.NEAREST if max(picture.size) < TILE else Image.Resampling.LANCZOS
    page.paste(ImageOps.pad(picture.convert("RGB"), (TILE, TILE), way, color="white"), corner)


def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return matplotlib's font, which knows most alphabets."""
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)
