"""A sheet of all crops of a few images, as the networks of self-distillation see them."""

import math

from PIL import Image
from torchvision.transforms.functional import to_pil_image

from paucal.data.views.normalisation import Normalisation
from paucal.types import Batch

MOST_IMAGES = 6
SMALLEST_TILE = 96  # pixels of the largest crop; smaller ones are enlarged without smoothing so that they can be judged
GAP = 4
GROUP_GAP = 16  # between crops of different sizes
Place = tuple[int, int, int, int]  # left, top, width, height


def crop_sheet(batch: Batch, normalisation: Normalisation) -> Image.Image:
    """Draw a row for each of up to 6 images: its crops from left to right, all at the same scale.

    Args:
        batch: all its views are drawn; global crops are as much larger as they are.
        normalisation: what was applied, to be undone.
    """
    images = min(MOST_IMAGES, len(batch))
    views = [normalisation.shown(view[:images].detach().float().cpu()) for view in batch.views]
    places, width, height = _places([(view.shape[-2], view.shape[-1]) for view in views])
    page = Image.new("RGB", (width, images * (height + GAP) + GAP), "white")
    for row in range(images):
        for view, (left, top, across, down) in zip(views, places, strict=True):
            tile = to_pil_image(view[row]).resize((across, down), Image.Resampling.NEAREST)
            page.paste(tile, (left, top + row * (height + GAP)))
    return page


def _places(sizes: list[tuple[int, int]]) -> tuple[list[Place], int, int]:
    """Return where each crop of the first row lies, and the width of the page and the height of a row."""
    zoom = max(1, math.ceil(SMALLEST_TILE / max(min(size) for size in sizes)))
    places: list[Place] = []
    left, before = GAP, sizes[0]
    for height, width in sizes:
        left += GROUP_GAP - GAP if (height, width) != before else 0
        places.append((left, GAP, width * zoom, height * zoom))
        left, before = left + width * zoom + GAP, (height, width)
    return places, left, max(down for _, _, _, down in places)
