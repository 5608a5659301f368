"""Images with boxes and masks drawn on them, and curves of precision over recall."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch.nn import functional as F
from torchvision.transforms.functional import to_pil_image

from paucal.evaluation.plots import shorten
from paucal.tasks.detection.annotations import Boxes
from paucal.tasks.detection.batch import BoxBatch
from paucal.tasks.detection.instance_masks.run_lengths import unpacked
from paucal.tasks.detection.judging import RECALLS, Found
from paucal.tasks.detection.matching import ClassMatches, match_overlaps, overlaps_of

SHOWN = 0.5  # score from which on a detection is drawn and counted as an answer
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a")  # Okabe and Ito
TRUTH = "#ffffff"
TILE, GAP, COLUMNS = 420, 6, 3  # pixels
WRITING = TILE / 11  # times as wide as its letters are high is a picture
MOST_CURVES = 20


def draw_found(
    image: Image.Image, found: Found, classes: Sequence[str], truth: Boxes | None = None, least: float = SHOWN
) -> Image.Image:
    """Return a copy of an image with what was found, masks half-transparent, and the objects as thin white boxes.

    Args:
        image: may have another size than the image that the boxes belong to, where `truth` says so.
        found: with boxes in pixels of the annotated image.
        classes: names.
        truth: the objects.
        least: score from which on a detection is drawn.
    """
    picture = image.convert("RGB")
    scale = 1.0 if truth is None else picture.width / truth.size[1]
    shown = found.above(least)
    for mask, label in zip(shown.masks or (), shown.labels.tolist(), strict=False):
        tint(picture, unpacked(mask), COLOURS[label % len(COLOURS)])
    draw = _pen(picture)
    width = max(1, round(picture.width / 300))
    for corners in [] if truth is None else truth.corners:
        draw.rectangle([float(value) * scale for value in corners], outline=TRUTH, width=1)
    for corners, score, label in zip(shown.boxes, shown.scores, shown.labels.tolist(), strict=True):
        text, colour = f"{classes[label]} {score:.2f}", COLOURS[label % len(COLOURS)]
        _box(draw, [float(value) * scale for value in corners], text, colour, width)
    return picture


def at_width(image: Image.Image, width: int = TILE) -> Image.Image:
    """Return an image at a width in pixels; what is drawn on it then is as large on every picture of a page."""
    return image.resize((width, max(1, round(image.height * width / image.width))))


def tint(picture: Image.Image, mask: NDArray[np.uint8], colour: str) -> None:
    """Mix a colour half and half into the pixels of a mask, which is brought to the size of the picture."""
    half = Image.fromarray(mask * np.uint8(128)).resize(picture.size, Image.Resampling.NEAREST)
    picture.paste(colour, (0, 0), half)


def batch_sheet(batch: BoxBatch, classes: Sequence[str], mean: Sequence[float], std: Sequence[float]) -> Image.Image:
    """Draw the images of a batch with their boxes and masks, as the network sees them."""
    tiles = []
    factors = torch.tensor(std)[:, None, None], torch.tensor(mean)[:, None, None]
    drawn = batch.masks or [None] * len(batch)
    for view, boxes, labels, masks in zip(batch.images[:9], batch.boxes, batch.labels, drawn, strict=False):
        picture = to_pil_image((view.cpu() * factors[0] + factors[1]).clamp(0, 1))
        for mask, label in zip([] if masks is None else masks, labels.tolist(), strict=False):
            padded = F.pad(mask, (0, view.shape[-1] - mask.shape[-1], 0, view.shape[-2] - mask.shape[-2]))
            tint(picture, padded.numpy(), COLOURS[label % len(COLOURS)])
        zoom = TILE / picture.width  # before the words are written, which would be enlarged too
        picture = picture.resize((TILE, max(1, round(picture.height * zoom))))
        draw = _pen(picture)
        for corners, label in zip((boxes * zoom).tolist(), labels.tolist(), strict=True):
            _box(draw, corners, str(classes[label]), COLOURS[label % len(COLOURS)], 1)
        tiles.append(picture)
    return sheet(tiles)


def sheet(pictures: Sequence[Image.Image], captions: Sequence[str] = ()) -> Image.Image:
    """Put pictures side by side on a page, each reduced to one width, with a line under each."""
    tiles = [at_width(one) for one in pictures]
    columns = min(COLUMNS, max(len(tiles), 1))
    line = 16 if captions else 0
    heights = [max(t.height for t in tiles[i : i + columns]) + line + GAP for i in range(0, len(tiles), columns)]
    page = Image.new("RGB", (columns * (TILE + GAP) + GAP, sum(heights) + GAP), "white")
    draw = ImageDraw.Draw(page)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, columns)
        at = (GAP + column * (TILE + GAP), GAP + sum(heights[:row]))
        page.paste(tile, at)
        if captions:
            draw.text((at[0], at[1] + tile.height + 2), _plain(captions[number])[: TILE // 6], fill="black")
    return page


def mistakes_of(found: Found, truth: Boxes, least: float = SHOWN) -> tuple[int, int]:
    """Return how many objects an image's answers miss, and how many answers are no object, at an overlap of 0.5.

    Args:
        found: all detections.
        truth: the objects.
        least: score from which on a detection is an answer.
    """
    answers = found.above(least)
    missed = false = 0
    for label in np.union1d(answers.labels, truth.labels):
        mine, theirs = answers.labels == label, truth.labels == label
        crowd = truth.crowd[theirs]
        hits, ignored = match_overlaps(overlaps_of(answers.boxes[mine], truth.corners[theirs], crowd), crowd)
        missed += int((theirs & ~truth.crowd).sum() - hits[0].sum())
        false += int((~hits[0] & ~ignored[0]).sum())
    return missed, false


def precision_recall_figure(matches: Sequence[ClassMatches], classes: Sequence[str], weights: NDArray) -> Figure:
    """Draw the precision of each class over its recall, at an overlap of 0.5."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for label, (one, name) in enumerate(list(zip(matches, classes, strict=True))[:MOST_CURVES]):
        curve = one.precisions(weights)
        if curve is not None:
            style = ("-", "--", ":")[label // len(COLOURS) % 3]
            text = f"{shorten(name)} ({curve[0].mean():.2f})"
            axes.plot(RECALLS, curve[0], style, color=COLOURS[label % len(COLOURS)], label=text)
    axes.set(xlabel="share of the objects that are found", ylabel="share of the answers that are right")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), title="AP50 of each class in brackets")
    axes.legend(fontsize=8, ncols=math.ceil(min(len(classes), MOST_CURVES) / 10))
    return figure


def _pen(picture: Image.Image) -> ImageDraw.ImageDraw:
    """Return what draws on a picture, with letters that are as large on all pictures of one width."""
    draw = ImageDraw.Draw(picture)
    draw.font = ImageFont.load_default(max(10, round(picture.width / WRITING)))
    return draw


def _box(draw: ImageDraw.ImageDraw, corners: Sequence[float], text: str, colour: str, width: int) -> None:
    left, top, right, bottom = corners
    draw.rectangle([left, top, max(right, left), max(bottom, top)], outline=colour, width=width)
    text = _plain(text)
    low = draw.textbbox((0, 0), text)[3]
    place = (left, max(0.0, top - low - 1))
    draw.rectangle(draw.textbbox(place, text), fill=colour)
    draw.text(place, text, fill="white")


def _plain(text: str) -> str:
    """Return text that Pillow's own font can draw."""
    return text.encode("latin-1", "replace").decode("latin-1")
