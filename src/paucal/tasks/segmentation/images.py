"""The images and masks of a run: opened, checked, and divided into parts that are stored."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paucal.data.decode import WHOLE
from paucal.data.images import ImageSet
from paucal.data.masks.class_names import read_class_names
from paucal.data.masks.masked_images import MaskedImages, MaskStore, image_set, require_enough, with_masks
from paucal.data.masks.pairs import find_pairs
from paucal.data.splits.split import Split, make_split
from paucal.data.splits.split_csv import read_split
from paucal.models.saved import stored_card
from paucal.reading import named_path
from paucal.runner.images import SplitImages, decoded
from paucal.runner.job import Bars
from paucal.runner.outputs import refuse_inside_images
from paucal.runner.run_folder import stored_split
from paucal.runs import RunFolder
from paucal.settings.options import flag
from paucal.tasks.segmentation.card import SegmentationCard
from paucal.tasks.segmentation.settings import SegmentSettings
from paucal.types import UserError

PATHS = ("data", "images", "masks", "classes", "split")


@dataclass(frozen=True)
class Segmented(SplitImages):
    """Images that are known to be readable, with their masks and what each is used for."""

    masked: MaskedImages | None = None

    @property
    def masks(self) -> MaskStore:
        """The class numbers of all images."""
        assert self.masked is not None
        return self.masked.masks


def pin_paths(settings: SegmentSettings) -> SegmentSettings:
    """Return settings that find the same files from any folder, and refuse results among images and masks.

    Raises:
        UserError: the results would lie there.
    """
    changes: dict[str, Any] = {}
    for name in PATHS:
        value = getattr(settings, name)
        if value is not None:
            changes[name] = os.path.realpath(named_path(value, flag(name) if name != "data" else "DATA"))
    output = Path(settings.output or "runs")
    refuse_inside_images(output, {flag(name): changes.get(name) for name in ("images", "masks")})
    return replace(settings, **changes)


def open_segmented(settings: SegmentSettings, bars: Bars, run: RunFolder | None) -> Segmented:
    """Open images and masks, read each once, and divide them.

    Args:
        settings: where they are.
        bars: shows a bar for countable work.
        run: the run that goes on, with its parts and the meaning of its masks; None for a new one.

    Raises:
        UserError: nothing is there, something cannot be read, or images and masks do not fit.
    """
    if settings.data is None and settings.images is None:
        raise UserError(
            "there is no DATA: give a folder with a folder of images and one of masks in it (images/ and masks/), or "
            "--images and --masks."
        )
    places = (None if value is None else Path(value) for value in (settings.images, settings.masks))
    location = settings.data or settings.images or ""
    pairs = find_pairs(Path(location), *places)
    card = stored_card(run, SegmentationCard)
    reading = card.preprocessing.reading if card is not None else WHOLE
    with bars("reading images") as advance:
        images = decoded(image_set(pairs, location), settings, replace(reading, side=None), advance)
    named = None if settings.classes is None else read_class_names(Path(settings.classes))
    with bars("reading masks") as advance:
        masked = with_masks(images, pairs, settings.mask_values, settings.ignore, named, advance, card and card.coding)
    require_enough(masked)
    split = _split(settings, masked.images) if run is None else stored_split(run, masked.images)
    return Segmented(masked.images, split, masked=masked)


def _split(settings: SegmentSettings, images: ImageSet) -> Split:
    """Divide the images so that every part has its share of every class that occurs."""
    shares = {
        name: value for name in ("val_fraction", "test_fraction") if (value := getattr(settings, name)) is not None
    }
    if settings.split is not None:
        if shares or settings.group_by is not None:
            raise UserError("--split says how the images are divided: leave --group-by and the fractions out.")
        return read_split(Path(settings.split), images)
    assert images.multi_hot is not None
    present = np.flatnonzero((images.multi_hot == 1).any(0))  # a class that no mask shows cannot be shared out
    shown = replace(
        images, classes=tuple(images.classes[place] for place in present), multi_hot=images.multi_hot[:, present]
    )
    return make_split(shown, seed=settings.seed, group_by=settings.group_by, **shares)
