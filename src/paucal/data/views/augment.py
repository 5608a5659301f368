"""Settings of the training augmentation and the parts that come from timm."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from PIL import Image
from timm.data.auto_augment import RandAugment, rand_augment_transform

from paucal.data.channels.planes import RGB
from paucal.data.views.normalisation import Normalisation
from paucal.types import UserError

Crop = Literal["random-resized", "padded", "none"]
Interpolation = Literal["bicubic", "bilinear", "lanczos"]
Resize = Literal["crop", "letterbox", "squash"]

RESAMPLING = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}

# timm leaves out what it cannot read and cuts off what is too much, both without a word.
_SECTION = re.compile(r"(mstd|mmax|inc|m|n|p)(\d+(?:\.\d+)?)")
_SETS = ("tweights", "t3a", "t3aw")
_RANGES = {"m": (0, 10), "n": (1, 15), "mmax": (1, 30), "inc": (0, 1), "mstd": (0, 1000), "p": (0, 1)}
_WHOLE = ("m", "n", "mmax", "inc")
_GEOMETRIC = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")  # of RandAugment's operations
_TRANSLATION = 0.45  # timm's largest shift of RandAugment, as a share of the shorter side


@dataclass(frozen=True)
class Augmentation:
    """How a training image is changed. The defaults are those of the DrLoc experiments (timm's).

    Attributes:
        crop: "random-resized" takes a box of random area and shape; "padded" resizes to cover the view, pads
            with black and takes a box of the view's size (the custom for 32-pixel images); "none" takes the
            centre.
        scale: range of the share of the image's area under "random-resized".
        ratio: range of width / height under "random-resized".
        padding: pixels on each side under "padded".
        hflip: probability of mirroring left and right.
        rand_augment: a RandAugment description in timm's language, or None.
        erase_prob: probability of erasing one box with noise after normalisation (random erasing, mode
            "pixel").
        interpolation: filter of every resize.
    """

    crop: Crop = "random-resized"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    padding: int = 4
    hflip: float = 0.5
    rand_augment: str | None = "rand-m9-mstd0.5-inc1"
    erase_prob: float = 0.25
    interpolation: Interpolation = "bicubic"

    def __post_init__(self) -> None:
        _check_choice("crop", self.crop, ("random-resized", "padded", "none"))
        _check_choice("interpolation", self.interpolation, tuple(RESAMPLING))
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise UserError(f"scale is {self.scale}; expected two rising numbers above 0, at most 1")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise UserError(f"ratio is {self.ratio}; expected two rising numbers above 0")
        if self.padding < 0:
            raise UserError(f"padding is {self.padding}; expected 0 or more pixels")
        for name, value in (("hflip", self.hflip), ("erase_prob", self.erase_prob)):
            if not 0 <= value <= 1:
                raise UserError(f"{name} is {value}; expected a probability from 0 to 1")


def build_rand_augment(
    augmentation: Augmentation, size: tuple[int, int], normalisation: Normalisation
) -> RandAugment | None:
    """Build timm's RandAugment as timm's own training transform does, or None where it is off.

    Images of other than three channels have the operations that move pixels alone: saturation and the like are of
    colours.

    Args:
        augmentation: its `rand_augment` and `interpolation` are used.
        size: (height, width) of the view in pixels.
        normalisation: its mean fills what moves into the picture.

    Raises:
        UserError: timm does not understand the description.
    """
    description = augmentation.rand_augment
    if description is None:
        return None
    _check_description(description)
    settings = {
        "translate_const": int(min(size) * _TRANSLATION),
        "img_mean": tuple(min(255, round(255 * value)) for value in normalisation.mean),
        "interpolation": RESAMPLING[augmentation.interpolation],
    }
    try:
        colours = len(normalisation.mean) == RGB
        policy = rand_augment_transform(description, settings, None if colours else list(_GEOMETRIC))
    except (AssertionError, ValueError, KeyError):
        raise UserError(
            f"rand_augment is '{description}'; expected a description such as 'rand-m9-mstd0.5-inc1', or none"
        ) from None
    for operation in policy.ops:
        if operation.name.startswith("Posterize"):
            operation.level_fn = partial(_one_bit_or_more, operation.level_fn)
    return policy


def _check_description(description: str) -> None:
    """Refuse sections that timm would leave out, and numbers that it would cut off."""
    kind, *sections = description.split("-")
    values: dict[str, float] = {}
    for section in sections if kind == "rand" else [description]:
        if section in _SETS:
            continue
        found = _SECTION.fullmatch(section)
        if found is None or found[1] in values or (found[1] in _WHOLE and "." in found[2]):
            raise UserError(
                f"rand_augment is '{description}'; expected a description such as 'rand-m9-mstd0.5-inc1', or none, and "
                f"'{section}' has no meaning there"
            )
        values[found[1]] = float(found[2])
    for name, value in values.items():
        low, high = _RANGES[name] if name != "m" else (0, values.get("mmax", _RANGES["m"][1]))
        if not low <= value <= high:
            raise UserError(
                f"rand_augment is '{description}', whose {name} is {value:g}; expected a number from {low:g} to "
                f"{high:g}, as in 'rand-m9-mstd0.5-inc1'"
            )


def _one_bit_or_more(level: Callable[..., tuple[int]], *args: object) -> tuple[int]:
    """Keep a bit at the largest magnitude; timm asks for none there, which Pillow 13 refuses."""
    return (max(1, level(*args)[0]),)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{name} is '{value}'; expected one of {', '.join(choices)}")
