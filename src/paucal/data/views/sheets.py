"""Contact sheets of augmented training images, as the network gets them."""

import math

from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from paucal.data.views.normalisation import Normalisation
from paucal.types import Batch
from paucal.wording import percent

MAX_IMAGES = 32  # maximum number of images on a sheet
_COLUMNS = 8  # maximum number of images side by side
_MIN_TILE_SIDE = 96  # minimum side of a drawn image in pixels; smaller images are enlarged without smoothing
_LINE_HEIGHT = 14  # height of a line of a caption in pixels
_GAP = 4  # distance between images in pixels
_LETTER_WIDTH = 6  # width of an average letter in pixels, in Pillow's default font
_MIN_CLASS_WEIGHT = 0.005  # classes below this weight of a mixed label (0 to 1) are left out of its caption
MAX_CROP_SHEET_IMAGES = 6  # maximum number of images on a sheet of crops
GROUP_GAP = 16  # distance between crops of different sizes in pixels


def draw_sheet(batch: Batch, normalisation: Normalisation, classes: tuple[str, ...]) -> Image.Image:
    """Draw the first views of up to 32 images with their classes, or the two largest weights of a mixed label."""
    views = normalisation.to_display(batch.views[0][:MAX_IMAGES].detach().float().cpu())
    zoom = max(1, math.ceil(_MIN_TILE_SIDE / min(views.shape[-2:])))
    height, width = (side * zoom for side in views.shape[-2:])
    labels = [None] * len(views) if batch.labels is None else list(batch.labels[: len(views)].detach().cpu())
    captions = [_caption_lines(label, classes) for label in labels] if classes else []
    row_height = height + _GAP + _LINE_HEIGHT * max(map(len, captions), default=0)
    columns = min(_COLUMNS, len(views))
    rows = math.ceil(len(views) / columns)
    page = Image.new("RGB", (columns * (width + _GAP) + _GAP, rows * row_height + _GAP), "white")
    draw = ImageDraw.Draw(page)
    for number, view in enumerate(views):
        corner = (_GAP + number % columns * (width + _GAP), _GAP + number // columns * row_height)
        tile = to_pil_image(view).resize((width, height), Image.Resampling.NEAREST)
        page.paste(tile, corner)
        for line, text in enumerate(captions[number] if captions else []):
            text_corner = (corner[0], corner[1] + height + line * _LINE_HEIGHT)
            draw.text(text_corner, text[: max(1, width // _LETTER_WIDTH)], fill="black")
    return page


def _caption_lines(label: Tensor | None, classes: tuple[str, ...]) -> list[str]:
    """Return the lines of a caption: the class, the two largest class weights of a mixed label, or all labels."""
    if label is None:
        return []
    if label.ndim == 0:
        return [_as_ascii(classes[int(label)])]
    label = label.nan_to_num()
    if bool(((label == 0) | (label == 1)).all()):  # multi-hot: any number of labels
        names = [_as_ascii(classes[i]) for i in label.nonzero()[:, 0].tolist()]
        return [", ".join(names) or "no label"]
    weights, numbers = label.topk(min(2, len(classes)))
    pairs = zip(weights.tolist(), numbers.tolist(), strict=True)
    return [f"{percent(weight, '.0f')} {_as_ascii(classes[i])}" for weight, i in pairs if weight >= _MIN_CLASS_WEIGHT]


def _as_ascii(name: str) -> str:
    """Return a name with "?" for characters that Pillow's built-in font lacks."""
    return name.encode("ascii", "replace").decode()


def draw_crop_sheet(batch: Batch, normalisation: Normalisation) -> Image.Image:
    """Draw the crops of up to 6 images of a batch, with a row for each image."""
    n_images = min(MAX_CROP_SHEET_IMAGES, len(batch))
    views = [normalisation.to_display(view[:n_images].detach().float().cpu()) for view in batch.views]
    sizes = [(view.shape[-2], view.shape[-1]) for view in views]
    zoom = max(1, math.ceil(_MIN_TILE_SIDE / max(min(size) for size in sizes)))
    boxes: list[tuple[int, int, int]] = []  # (left, width, height) of each tile of a row in pixels
    page_width, previous = _GAP, sizes[0]
    for size in sizes:
        left = page_width + (GROUP_GAP - _GAP if size != previous else 0)
        boxes.append((left, size[1] * zoom, size[0] * zoom))
        page_width, previous = left + size[1] * zoom + _GAP, size
    height = max(tile_height for _, _, tile_height in boxes)
    page = Image.new("RGB", (page_width, n_images * (height + _GAP) + _GAP), "white")
    for row in range(n_images):
        for view, (left, tile_width, tile_height) in zip(views, boxes, strict=True):
            tile = to_pil_image(view[row]).resize((tile_width, tile_height), Image.Resampling.NEAREST)
            page.paste(tile, (left, _GAP + row * (height + _GAP)))
    return page
