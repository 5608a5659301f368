"""Training augmentation: settings, timm's RandAugment with the affine map of its operations, mixup and CutMix."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from PIL import Image
from timm.data.auto_augment import RandAugment, rand_augment_transform
from torch import Tensor
from torchvision.transforms import v2

from paucal.data.channels.pixels import RGB
from paucal.data.views.normalisation import Normalisation
from paucal.types import Batch, UserError

Crop = Literal["random-resized", "padded", "none"]
Interpolation = Literal["bicubic", "bilinear", "lanczos"]
Resize = Literal["crop", "letterbox", "squash"]

RESAMPLING = {name: Image.Resampling[name.upper()] for name in get_args(Interpolation)}

# Descriptions are checked here, since timm silently ignores sections that it cannot parse, and truncates numbers.
_SECTION = re.compile(r"(mstd|mmax|inc|m|n|p)(\d+(?:\.\d+)?)")
_OPERATION_SETS = ("tweights", "t3a", "t3aw")  # sections that choose one of timm's sets of operations
# Smallest and largest number in each section.
_SECTION_RANGES = {"m": (0, 10), "n": (1, 15), "mmax": (1, 30), "inc": (0, 1), "mstd": (0, 1000), "p": (0, 1)}
_INTEGER_SECTIONS = ("m", "n", "mmax", "inc")
_GEOMETRIC = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")  # operations that move pixels
_MAX_TRANSLATION = 0.45  # largest translation of timm's RandAugment, as a fraction of the shorter side
# Coefficients (a, b, c, d, e, f) that map a point (x, y) of the result to a point of the source, in pixels:
# source x = a x + b y + c, source y = d x + e y + f.
Affine = tuple[float, float, float, float, float, float]
# Range of the parameter of the Beta distribution of mixup and CutMix. Below this range, nearly all mixing weights drawn
# from the distribution are close to 0 or 1; above this range, nearly all are close to 0.5.
ALPHA_RANGE = (1e-3, 1e3)


@dataclass(frozen=True)
class Augmentation:
    """Settings for the augmentation of training images; the defaults are those of the DrLoc experiments (timm).

    The crop "random-resized" has a random area and aspect ratio. "padded" resizes to cover the view, pads with black
    and crops a box of the view's size (usual for 32-pixel images). "none" crops the centre.
    """

    crop: Crop = "random-resized"
    scale: tuple[float, float] = (0.08, 1.0)  # range of the area of a random-resized crop, as a fraction
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # range of the width / height of a random-resized crop
    padding: int = 4  # pixels added on each side of a padded crop
    hflip: float = 0.5  # probability of a horizontal flip
    rand_augment: str | None = "rand-m9-mstd0.5-inc1"  # description in timm's syntax; None for no RandAugment
    # Probability of filling one random box with noise after normalisation (random erasing, mode "pixel").
    erase_prob: float = 0.25
    interpolation: Interpolation = "bicubic"  # interpolation of every resize

    def __post_init__(self) -> None:
        for name, choices in (("crop", get_args(Crop)), ("interpolation", get_args(Interpolation))):
            if getattr(self, name) not in choices:
                raise UserError(f"{name} is '{getattr(self, name)}'; expected one of {', '.join(choices)}.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise UserError(f"scale is {self.scale}; expected a minimum and a maximum, above 0 and at most 1.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise UserError(f"ratio is {self.ratio}; expected a minimum and a maximum, above 0.")
        if self.padding < 0:
            raise UserError(f"padding is {self.padding}; expected 0 or more pixels.")
        check_probability("hflip", self.hflip)
        check_probability("erase_prob", self.erase_prob)


def build_rand_augment(
    augmentation: Augmentation, size: tuple[int, int], normalisation: Normalisation
) -> RandAugment | None:
    """Build RandAugment as timm does, or return None if it is off; colour operations are for RGB images only."""
    description = augmentation.rand_augment
    if description is None:
        return None
    _check_description(description)
    settings = {
        "translate_const": int(min(size) * _MAX_TRANSLATION),
        "img_mean": tuple(min(255, round(255 * value)) for value in normalisation.mean),
        "interpolation": RESAMPLING[augmentation.interpolation],
    }
    try:
        is_rgb = len(normalisation.mean) == RGB
        policy = rand_augment_transform(description, settings, None if is_rgb else list(_GEOMETRIC))
    except (AssertionError, ValueError, KeyError):
        raise UserError(
            f"rand_augment is '{description}'; expected a description such as 'rand-m9-mstd0.5-inc1', or none."
        ) from None
    for operation in policy.ops:
        if operation.name.startswith("Posterize"):
            operation.level_fn = partial(_at_least_one_bit, operation.level_fn)
    return policy


def _check_description(description: str) -> None:
    """Raise a UserError for sections that timm would ignore, and for numbers that timm would truncate."""
    kind, *sections = description.split("-")
    values: dict[str, float] = {}
    for section in sections if kind == "rand" else [description]:
        if section in _OPERATION_SETS:
            continue
        match = _SECTION.fullmatch(section)
        if match is None or match[1] in values or (match[1] in _INTEGER_SECTIONS and "." in match[2]):
            raise UserError(
                f"rand_augment is '{description}', but '{section}' is not valid; expected a description such as "
                "'rand-m9-mstd0.5-inc1', or none."
            )
        values[match[1]] = float(match[2])
    for name, value in values.items():
        low, high = _SECTION_RANGES[name] if name != "m" else (0, values.get("mmax", _SECTION_RANGES["m"][1]))
        if not low <= value <= high:
            raise UserError(
                f"rand_augment is '{description}', in which {name} is {value:g}; expected a number from {low:g} to "
                f"{high:g}, as in 'rand-m9-mstd0.5-inc1'."
            )


def _at_least_one_bit(n_bits: Callable[..., tuple[int]], *args: object) -> tuple[int]:
    """Return the number of bits that timm keeps when posterising, but at least 1, since Pillow 13 refuses 0."""
    return (max(1, n_bits(*args)[0]),)


def check_probability(name: str, value: float) -> None:
    """Raise a UserError unless the value of a setting is a probability."""
    if not 0 <= value <= 1:
        raise UserError(f"{name} is {value}; expected a probability from 0 to 1.")


# For each geometric operation of timm, a function that computes the affine map from (level, width, height).
_OPERATION_MAPS: dict[str, Callable[[float, int, int], Affine]] = {
    "ShearX": lambda level, width, height: (1, level, 0, 0, 1, 0),
    "ShearY": lambda level, width, height: (1, 0, 0, level, 1, 0),
    "TranslateX": lambda level, width, height: (1, 0, level, 0, 1, 0),
    "TranslateY": lambda level, width, height: (1, 0, 0, 0, 1, level),
    "TranslateXRel": lambda level, width, height: (1, 0, level * width, 0, 1, 0),
    "TranslateYRel": lambda level, width, height: (1, 0, 0, 0, 1, level * height),
    "Rotate": lambda level, width, height: rotation_map(level, width, height),
}


class RandAugmentWithGeometry:
    """timm's RandAugment, whose geometric operations are wrapped to return the affine map to the original image."""

    def __init__(self, policy: RandAugment) -> None:
        self.policy = policy
        self._theta = torch.eye(3)
        for operation in policy.ops:
            if operation.name in _OPERATION_MAPS:
                operation.aug_fn = partial(self._record_and_call, operation.name, operation.aug_fn)

    def __call__(self, image: Image.Image) -> tuple[Image.Image, Tensor]:
        """Return the augmented image, and the (3, 3) map to the original image, as in `types.Batch.geometry`."""
        self._theta = torch.eye(3)
        return self.policy(image), self._theta

    def _record_and_call(
        self, name: str, function: Callable[..., Image.Image], image: Image.Image, level: float, **settings: Any
    ) -> Image.Image:
        self._theta = self._theta @ normalise_map(_OPERATION_MAPS[name](level, *image.size), image.size)
        return function(image, level, **settings)


def rotation_map(degrees: float, width: int, height: int) -> Affine:
    """Return PIL's affine map of a counter-clockwise rotation about the centre of the image."""
    angle = -math.radians(degrees)
    cosine, sine = math.cos(angle), math.sin(angle)
    # The published token-labeling code rotates its label maps about a point that is half a position away from this.
    x, y = width / 2, height / 2
    return cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y


def normalise_map(pixel_map: Affine, size: tuple[int, int]) -> Tensor:
    """Convert a map of pixel coordinates (pixel edges at integers) to a (3, 3) map of coordinates from -1 to 1."""
    a, b, c, d, e, f = pixel_map
    width, height = size
    return torch.tensor(
        [
            [a, b * height / width, a + b * height / width + 2 * c / width - 1],
            [d * width / height, e, d * width / height + e + 2 * f / height - 1],
            [0.0, 0.0, 1.0],
        ]
    )


@dataclass(frozen=True)
class Mixing:
    """Settings of mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899), which mix the images of a batch.

    The defaults are those of the DrLoc experiments (DeiT). timm mixes image i with image B - 1 - i, so the batch size B
    must be even. Here each image is mixed with the previous image, so any batch of two or more images works.
    """

    mixup: float = 0.8  # parameter of mixup's Beta distribution, within `ALPHA_RANGE`; 0 for no mixup
    cutmix: float = 1.0  # parameter of CutMix's Beta distribution, within `ALPHA_RANGE`; 0 for no CutMix
    prob: float = 1.0  # probability of mixing a batch
    switch_prob: float = 0.5  # probability that a mixed batch uses CutMix if both mixup and CutMix are on

    def __post_init__(self) -> None:
        if not all(alpha == 0 or ALPHA_RANGE[0] <= alpha <= ALPHA_RANGE[1] for alpha in (self.mixup, self.cutmix)):
            raise UserError(
                f"mixup is {self.mixup} and cutmix is {self.cutmix}; expected 0 (off) or a number from "
                f"{ALPHA_RANGE[0]:g} to {ALPHA_RANGE[1]:g}."
            )
        check_probability("mixing probability", self.prob)
        check_probability("switch_prob", self.switch_prob)

    def mix(self, batch: Batch, num_classes: int) -> Batch:
        """With probability `prob`, mix the images and convert the labels to (B, K) class weights that sum to 1."""
        if self.prob == 0 or self.mixup == self.cutmix == 0 or len(batch) < 2:
            return batch
        if len(batch.views) != 1 or batch.labels is None or batch.label_maps is not None:
            raise ValueError(
                f"mixing needs one view, with labels and without label maps; got {len(batch.views)} views, "
                f"labels: {batch.labels is not None}, label maps: {batch.label_maps is not None}"
            )
        # Random numbers are drawn from torch's CPU generator, which needs no synchronisation with the device.
        if torch.rand(()).item() >= self.prob:
            return batch
        use_cutmix = self.mixup == 0 or (self.cutmix > 0 and torch.rand(()).item() < self.switch_prob)
        mixer_class, alpha = (v2.CutMix, self.cutmix) if use_cutmix else (v2.MixUp, self.mixup)
        mixer = mixer_class(alpha=alpha, num_classes=num_classes)
        view, labels = mixer(batch.views[0], batch.labels)
        return replace(batch, views=[view], labels=labels)
