"""The training, validation and test images of a supervised run."""

from pathlib import Path
from typing import Any

from paucal.data.images import ImageSet
from paucal.data.splits.file import read_split
from paucal.data.splits.split import limit_val, make_split, take_few, take_fraction
from paucal.methods.training_settings import TrainSettings
from paucal.runner.images import SplitImages
from paucal.types import UserError


def split_images(settings: TrainSettings, images: ImageSet) -> SplitImages:
    """Split the images, and reduce the training part if the settings say so.

    Raises:
        UserError: A class has too few images for the parts, or a share is invalid.
    """
    shares: dict[str, Any] = {
        name: value for name in ("val_fraction", "test_fraction") if (value := getattr(settings, name)) is not None
    }
    if settings.split is not None:
        if settings.group_by is not None or settings.fold is not None or shares:
            raise UserError("--split defines the parts: leave --group-by, --fold and the fractions out.")
        split = read_split(Path(settings.split).expanduser(), images)
    else:
        split = make_split(images, seed=settings.seed, group_by=settings.group_by, fold=settings.fold, **shares)
    if settings.fraction is not None and settings.few_labels is not None:
        raise UserError("--fraction and --few-labels both reduce the training images; give one of them.")
    if settings.fraction is not None:
        split = take_fraction(split, images.targets, settings.fraction, settings.seed)
    if settings.few_labels is not None:
        split = take_few(split, images.targets, settings.few_labels, settings.seed)
    if settings.fraction is not None or settings.few_labels is not None:
        split = limit_val(split, images.targets, settings.seed)
    return SplitImages(images, split)
