"""Open the images and masks of a segmentation run, check them, and split them into train, val and test."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paucal.data.decode import DEFAULT_DECODE_OPTIONS
from paucal.data.images import ImageSet
from paucal.data.label_kinds import report_other_label_kinds
from paucal.data.masks.coding import NamedClasses, read_class_names
from paucal.data.masks.masked_images import MaskedImages, MaskStore, images_of_pairs, read_masks, require_enough_images
from paucal.data.masks.pairs import find_pairs
from paucal.data.splits.split import Split, make_split
from paucal.data.splits.split_csv import read_split
from paucal.models.trained import stored_card
from paucal.runner.images import SplitImages, decode_images
from paucal.runner.job import Bars
from paucal.runner.resuming import stored_split
from paucal.runs import RunFolder
from paucal.tasks.segmentation.model import SegmentationCard
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.types import UserError
from paucal.wording import counted


@dataclass(frozen=True, kw_only=True)
class SegmentationData(SplitImages):
    """Readable images with their masks and their split."""

    masked: MaskedImages

    @property
    def masks(self) -> MaskStore:
        """The masks of all images, as class numbers."""
        return self.masked.masks


def open_segmentation_data(settings: SegmentSettings, bars: Bars, run: RunFolder | None) -> SegmentationData:
    """Open, check and split images and masks; a resumed run keeps its split and the coding of its masks."""
    location = settings.data
    if location is None:
        location = settings.images
    if location is None:
        raise UserError(
            "DATA is missing: give a folder that contains a folder of images and a folder of masks (images/ and "
            "masks/), or --images and --masks."
        )
    paths = (None if value is None else Path(value) for value in (settings.images, settings.masks))
    with report_other_label_kinds(Path(location), "segment"):
        pairs = find_pairs(Path(location), *paths)
    card = stored_card(run, SegmentationCard)
    decode_options = card.preprocessing.decode_options if card is not None else DEFAULT_DECODE_OPTIONS
    with bars("reading images") as advance:
        images = decode_images(images_of_pairs(pairs, location), settings, replace(decode_options, side=None), advance)
    class_names = None if settings.classes is None else read_class_names(Path(settings.classes))
    if card is not None and class_names is None:
        class_names = NamedClasses(card.classes)
    with bars("reading masks") as advance:
        coding, kind = card and card.coding, settings.mask_values
        masked = read_masks(images, pairs, kind, settings.ignore, class_names, advance, coding)
    require_enough_images(masked)
    if run is not None:
        return SegmentationData(masked.images, stored_split(run, masked.images), masked=masked)
    split = _split_images(settings, masked.images)
    val = split.indices("val")
    if len(val) and not masked.class_pixel_counts[val].any():  # no epoch could be scored on such a split
        blank = f"{counted(len(val), 'validation image')} without a labelled pixel"
        split = split.exclude(split.parts == "val", f"{blank} left out, since they cannot select a model")
    if not len(split.indices("test")):
        raise UserError(
            f"none of the {counted(len(split.parts), 'image')} is a test image: give test images, or a larger "
            "--test-fraction."
        )
    return SegmentationData(masked.images, split, masked=masked)


def _split_images(settings: SegmentSettings, images: ImageSet) -> Split:
    """Split the images as `--split` says, or so that each split has its fraction of every class in the masks."""
    if settings.split is not None:
        if settings.given_fractions or settings.group_by is not None:
            raise UserError("--split defines all splits: remove --group-by, --val-fraction and --test-fraction.")
        return read_split(Path(settings.split), images)
    assert images.multi_hot is not None
    class_indices = np.flatnonzero((images.multi_hot == 1).any(0))  # leaves out classes without a pixel
    visible_classes = replace(
        images,
        classes=tuple(images.classes[index] for index in class_indices),
        multi_hot=images.multi_hot[:, class_indices],
    )
    return make_split(visible_classes, seed=settings.seed, group_by=settings.group_by, **settings.given_fractions)
