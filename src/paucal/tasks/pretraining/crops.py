"""Crop groups and crop transforms of pre-training, built from the settings."""

import math
from collections.abc import Sequence

from paucal.backbones.layout import Size
from paucal.data.views.multi_crop import BLUR, build_crop_transforms
from paucal.data.views.normalisation import Normalisation
from paucal.methods.pretraining_settings import CropSettings, PretrainSettings
from paucal.settings.options import MAX_SIDE, flag
from paucal.types import Crops, UserError, height_and_width
from paucal.wording import counted


def make_crop_groups(settings: CropSettings, size: Size) -> list[Crops]:
    """Return the global crops, which have the given size, and then one group of local crops per local size."""
    counts, sizes = settings.local_crops, settings.local_size
    if len(counts) != len(sizes) and sum(counts):
        raise UserError(
            f"--local-crops has {len(counts)} numbers and --local-size has {len(sizes)}: give a number of crops for "
            "each size."
        )
    scale = _scale_range("global_scale", settings.global_scale)
    local_scale = _scale_range("local_scale", settings.local_scale)
    groups = [Crops(settings.global_crops, size, scale)]
    groups += [Crops(count, side, local_scale) for count, side in zip(counts, sizes, strict=False) if count]
    if settings.global_crops < 1 or sum(group.count for group in groups) < 2:
        raise UserError(
            f"--global-crops {settings.global_crops} and --local-crops {sum(counts)} give no pair of crops to compare: "
            "use 2 crops or more, at least one of which is global."
        )
    return groups


def make_crop_transforms(settings: PretrainSettings, statistics: Normalisation):
    """Return a (transform, number of crops) pair per crop group; raise a UserError for invalid crops or blur radii."""
    size = height_and_width(settings.img_size)
    groups, radii = make_crop_groups(settings, size), _blur_radii(settings.blur)
    hflip = settings.hflip
    return build_crop_transforms(settings.pipeline, groups, statistics, size, radii, hflip, resize=settings.resize)


def describe_crops(settings: PretrainSettings) -> str:
    """Return the crops as text, such as "2 crops of 224x224 and 8 crops of 96x96"."""
    groups = make_crop_groups(settings, height_and_width(settings.img_size))
    return " and ".join(
        f"{counted(group.count, 'crop')} of {'x'.join(map(str, group.sides or ()))}" for group in groups
    )


def relative_pixels(groups: Sequence[Crops]) -> float:
    """Return the number of pixels in all crops of an image, divided by the number of pixels in a global crop."""
    pixels = [math.prod(group.sides or ()) for group in groups]
    return sum(group.count * area for group, area in zip(groups, pixels, strict=True)) / pixels[0]


def _scale_range(name: str, values: list[float] | None) -> tuple[float, float]:
    if values is None or len(values) != 2 or not 0 < values[0] <= values[1] <= 1:
        raise UserError(
            f"{flag(name)} is {values}; expected two fractions of the area, smallest and largest, such as 0.4 1.0."
        )
    return values[0], values[1]


def _blur_radii(values: list[float] | None) -> tuple[float, float]:
    if values is None:
        return BLUR
    if len(values) != 2 or not 0 <= values[0] <= values[1] <= MAX_SIDE:
        raise UserError(f"--blur is {values}; expected the smallest and the largest radius in pixels, such as 0.1 2.0.")
    return values[0], values[1]
