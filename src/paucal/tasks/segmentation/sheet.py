"""Training crops as the network sees them, with their masks."""

from PIL import Image

from paucal.data.views.normalisation import Normalisation
from paucal.tasks.segmentation.card import SegmentationCard
from paucal.tasks.segmentation.crops import MASK
from paucal.tasks.segmentation.pictures import GAP, legend, overlay, palette, stacked
from paucal.types import Batch

MOST = 8


def crop_sheet(batch: Batch, card: SegmentationCard) -> Image.Image:
    """Return up to eight crops above the same crops under the colours of their classes."""
    statistics, colours = Normalisation(card.preprocessing.mean, card.preprocessing.std), palette(card.coding)
    crops = [
        Image.fromarray(one.permute(1, 2, 0).contiguous().numpy()) for one in statistics.shown(batch.views[0][:MOST])
    ]
    masks = [mask.numpy() for mask in (batch.label_maps or {})[MASK][:MOST]]
    width, height = crops[0].size
    sheet = Image.new("RGB", (len(crops) * (width + GAP), 2 * height + GAP), "white")
    for place, (crop, mask) in enumerate(zip(crops, masks, strict=True)):
        sheet.paste(crop, (place * (width + GAP), 0))
        sheet.paste(overlay(crop, mask, colours), (place * (width + GAP), height + GAP))
    return stacked([sheet, legend(card.classes, colours)])
