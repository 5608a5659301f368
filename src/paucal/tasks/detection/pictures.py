"""Drawings of boxes and masks on images, and plots of precision over recall."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch.nn import functional as F
from torchvision.transforms.functional import to_pil_image

from paucal.evaluation.plots import plot_label
from paucal.tasks.detection.batches import BoxBatch
from paucal.tasks.detection.detections import Detections
from paucal.tasks.detection.evaluation import RECALL_LEVELS, ClassMatches, box_overlaps, match_overlaps
from paucal.tasks.detection.images import Boxes
from paucal.tasks.detection.masks import unpack_mask
from paucal.wording import replace_undrawable

MIN_SHOWN_SCORE = 0.5  # detections with a lower score are neither drawn nor compared with the annotated boxes
# Colours of the classes: six colours of Okabe and Ito, and grey
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a")
TRUTH_COLOUR = "#ffffff"  # colour of the annotated boxes
TILE_WIDTH, GAP, COLUMNS = 420, 6, 3  # width of an image and distance between images in pixels; images per row
WIDTH_PER_FONT_SIZE = TILE_WIDTH / 11  # ratio of the width of an image to the font size of class names
MAX_CURVES = 20  # maximum number of classes in a plot of precision over recall


def draw_detections(image: Image.Image, detections: Detections, classes: Sequence[str], truth: Boxes) -> Image.Image:
    """Return a copy of an image with the detections drawn on it, with half-transparent masks.

    The annotated objects in `truth` are drawn as thin white boxes. Detections are in pixels of the annotated image
    (`truth.size`), and `image` may be smaller.
    """
    picture = image.convert("RGB")
    scale = picture.width / truth.size[1]
    visible = detections.with_min_score(MIN_SHOWN_SCORE)
    for mask, label in zip(visible.masks or (), visible.labels.tolist(), strict=False):
        blend_mask(picture, unpack_mask(mask), COLOURS[label % len(COLOURS)])
    draw = _drawing_context(picture)
    width = max(1, round(picture.width / 300))
    for corners in truth.corners:
        draw.rectangle([float(value) * scale for value in corners], outline=TRUTH_COLOUR, width=1)
    for corners, score, label in zip(visible.boxes, visible.scores, visible.labels.tolist(), strict=True):
        text, colour = f"{classes[label]} {score:.2f}", COLOURS[label % len(COLOURS)]
        _draw_box(draw, [float(value) * scale for value in corners], text, colour, width)
    return picture


def resize_to_width(image: Image.Image, width: int = TILE_WIDTH) -> Image.Image:
    """Resize an image to a width in pixels, so that lines and letters have the same size on all images of a page."""
    return image.resize((width, max(1, round(image.height * width / image.width))))


def blend_mask(picture: Image.Image, mask: NDArray[np.uint8], colour: str) -> None:
    """Blend the pixels under a mask with a colour at 50 % opacity; the mask is resized to the image."""
    stencil = Image.fromarray(mask * np.uint8(128)).resize(picture.size, Image.Resampling.NEAREST)
    picture.paste(colour, (0, 0), stencil)


def draw_training_batch(
    batch: BoxBatch, classes: Sequence[str], mean: Sequence[float], std: Sequence[float]
) -> Image.Image:
    """Draw up to nine augmented images of a batch with their boxes and masks on one page."""
    tiles = []
    means, stds = (torch.tensor(values)[:, None, None] for values in (mean, std))
    all_masks = batch.masks or [None] * len(batch)
    for view, boxes, labels, masks in zip(batch.images[:9], batch.boxes, batch.labels, all_masks, strict=False):
        picture = to_pil_image((view.cpu() * stds + means).clamp(0, 1))
        for mask, label in zip([] if masks is None else masks, labels.tolist(), strict=False):
            padded = F.pad(mask, (0, view.shape[-1] - mask.shape[-1], 0, view.shape[-2] - mask.shape[-2]))
            blend_mask(picture, padded.numpy(), COLOURS[label % len(COLOURS)])
        # Images are resized before class names are drawn, so that the letters have the same size on all images.
        zoom, picture = TILE_WIDTH / picture.width, resize_to_width(picture)
        draw = _drawing_context(picture)
        for corners, label in zip((boxes * zoom).tolist(), labels.tolist(), strict=True):
            _draw_box(draw, corners, str(classes[label]), COLOURS[label % len(COLOURS)], 1)
        tiles.append(picture)
    return make_contact_sheet(tiles)


def make_contact_sheet(pictures: Sequence[Image.Image], captions: Sequence[str] = ()) -> Image.Image:
    """Arrange images in rows on one page, with a caption under each image."""
    tiles = [resize_to_width(picture) for picture in pictures]
    columns = min(COLUMNS, max(len(tiles), 1))
    line = 16 if captions else 0
    heights = [max(t.height for t in tiles[i : i + columns]) + line + GAP for i in range(0, len(tiles), columns)]
    page = Image.new("RGB", (columns * (TILE_WIDTH + GAP) + GAP, sum(heights) + GAP), "white")
    draw = ImageDraw.Draw(page)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, columns)
        corner = (GAP + column * (TILE_WIDTH + GAP), GAP + sum(heights[:row]))
        page.paste(tile, corner)
        if captions:
            text = replace_undrawable(captions[number])[: TILE_WIDTH // 6]
            draw.text((corner[0], corner[1] + tile.height + 2), text, fill="black")
    return page


def count_mistakes(detections: Detections, truth: Boxes) -> tuple[int, int]:
    """Return the numbers of missed objects and of false positives in an image, at an IoU threshold of 0.5."""
    confident = detections.with_min_score(MIN_SHOWN_SCORE)
    missed = false = 0
    for label in np.union1d(confident.labels, truth.labels):
        detected, annotated = confident.labels == label, truth.labels == label
        crowd = truth.crowd[annotated]
        hits, ignored = match_overlaps(box_overlaps(confident.boxes[detected], truth.corners[annotated], crowd), crowd)
        missed += int((annotated & ~truth.crowd).sum() - hits[0].sum())
        false += int((~hits[0] & ~ignored[0]).sum())
    return missed, false


def precision_recall_figure(matches: Sequence[ClassMatches], classes: Sequence[str], weights: NDArray) -> Figure:
    """Plot precision over recall for each class, at an IoU threshold of 0.5."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for label, (class_matches, name) in enumerate(list(zip(matches, classes, strict=True))[:MAX_CURVES]):
        precisions = class_matches.precisions(weights)
        if precisions is not None:
            style = ("-", "--", ":")[label // len(COLOURS) % 3]
            text = f"{plot_label(name)} ({precisions[0].mean():.2f})"
            axes.plot(RECALL_LEVELS, precisions[0], style, color=COLOURS[label % len(COLOURS)], label=text)
    axes.set(xlabel="recall: fraction of objects that are detected")
    axes.set(ylabel="precision: fraction of detections that are correct")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), title="AP50 of each class in brackets")
    axes.legend(fontsize=8, ncols=math.ceil(min(len(classes), MAX_CURVES) / 10))
    return figure


def _drawing_context(picture: Image.Image) -> ImageDraw.ImageDraw:
    """Return a drawing context for an image, with a font size proportional to the image's width."""
    draw = ImageDraw.Draw(picture)
    draw.font = ImageFont.load_default(max(10, round(picture.width / WIDTH_PER_FONT_SIZE)))
    return draw


def _draw_box(draw: ImageDraw.ImageDraw, corners: Sequence[float], text: str, colour: str, width: int) -> None:
    left, top, right, bottom = corners
    draw.rectangle([left, top, max(right, left), max(bottom, top)], outline=colour, width=width)
    text = replace_undrawable(text)
    text_height = draw.textbbox((0, 0), text)[3]
    text_corner = (left, max(0.0, top - text_height - 1))
    draw.rectangle(draw.textbbox(text_corner, text), fill=colour)
    draw.text(text_corner, text, fill="white")
