"""The preprocessing of images for a model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, get_args

from paucal.backbones.weights.checkpoints import WeightsPreprocessing
from paucal.data.channels.arrays import MAX_CHANNELS
from paucal.data.decode import DecodeOptions
from paucal.data.decoded.prepare import stored_side
from paucal.data.views.augmentation import RESAMPLING, Interpolation, Resize
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import EvalTransform
from paucal.types import UserError

MAX_SIDE = 4096  # largest side of a model's input in pixels
MIN_CROP_RATIO = 0.1  # smallest allowed `crop_ratio`


@dataclass(frozen=True)
class Preprocessing:
    """The steps that turn an image into the input of a model; see `WeightsPreprocessing` for `crop_ratio` to `std`."""

    image_size: tuple[int, int]  # (height, width) of the input in pixels
    crop_ratio: float
    interpolation: Interpolation
    mean: tuple[float, ...]
    std: tuple[float, ...]
    # Values of black and white in images of more than 8 bits per channel, measured on the training images; None if the
    # training images have 8 bits per channel.
    value_range: tuple[float, float] | None = None
    resize: Resize = "crop"  # how images with another aspect ratio are fitted to the input
    # Value range of each channel, used instead of `value_range` if the number of channels is not 3.
    channel_ranges: tuple[tuple[float, float], ...] | None = None

    def __post_init__(self) -> None:
        if not (len(self.image_size) == 2 and all(type(n) is int and 1 <= n <= MAX_SIDE for n in self.image_size)):
            self._refuse_value("image_size", f"height and width in pixels, at most {MAX_SIDE}")
        if not is_number(self.crop_ratio) or not MIN_CROP_RATIO <= self.crop_ratio <= 1:
            self._refuse_value("crop_ratio", f"a number from {MIN_CROP_RATIO} to 1")
        if self.interpolation not in RESAMPLING:
            self._refuse_value("interpolation", f"one of {', '.join(RESAMPLING)}")
        if len(self.mean) != len(self.std):
            self._refuse_value("mean", f"{len(self.std)} numbers, as for std")
        for name, lower in (("mean", -math.inf), ("std", 0.0)):
            values = getattr(self, name)
            if not 1 <= len(values) <= MAX_CHANNELS or not all(
                is_number(value) and lower < value < math.inf for value in values
            ):
                self._refuse_value(name, "a number for each channel, which must be positive for std")
        if self.resize not in get_args(Resize):
            self._refuse_value("resize", f"one of {', '.join(get_args(Resize))}")
        if self.value_range is not None and not _is_range(self.value_range):
            self._refuse_value("value_range", "two increasing numbers, or null")
        ranges = self.channel_ranges
        if ranges is not None and not (len(ranges) == self.channels and all(map(_is_range, ranges))):
            self._refuse_value("channel_ranges", "two increasing numbers per channel, or null")

    @property
    def channels(self) -> int:
        """Number of channels of the input."""
        return len(self.mean)

    def _refuse_value(self, name: str, expected: str) -> None:
        raise UserError(f"The preprocessing of a model has {name} {getattr(self, name)!r}, expected {expected}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, except newer fields with their default value.

        Earlier versions of paucal, which do not have the newer fields, can then read the result.
        """
        newer_defaults = {"value_range": None, "resize": "crop", "channel_ranges": None}
        return {
            name: value
            for name, value in vars(self).items()
            if name not in newer_defaults or value != newer_defaults[name]
        }

    @classmethod
    def from_image_input(cls, image_size: tuple[int, int], image_input: WeightsPreprocessing) -> Self:
        """Return the preprocessing for published weights at an image size."""
        return cls(image_size, image_input.crop_ratio, image_input.interpolation, image_input.mean, image_input.std)

    @property
    def image_input(self) -> WeightsPreprocessing:
        """The fields that belong to the weights and do not depend on the image size."""
        return WeightsPreprocessing(self.crop_ratio, self.interpolation, self.mean, self.std)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Read the output of `to_dict` from an untrusted file, which may raise an AttributeError or a TypeError."""
        return cls(**{name: _as_tuples(value) for name, value in stored.items()})

    @property
    def decode_options(self) -> DecodeOptions:
        """Options for decoding the model's images: the size that the model needs, and its channels and value ranges."""
        return DecodeOptions(stored_side(self.image_size), self.value_range, self.channels, self.channel_ranges)

    @property
    def normalisation(self) -> Normalisation:
        """The last step, which normalises each channel by its mean and standard deviation."""
        return Normalisation(self.mean, self.std)

    def transform(self) -> EvalTransform:
        """Return the transform from a PIL image to a (C, H, W) float tensor and the geometry of its resizing."""
        return EvalTransform(self.image_size, self.normalisation, self.crop_ratio, self.interpolation, self.resize)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _is_range(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2 or not all(is_number(end) for end in value):
        return False
    return -math.inf < value[0] < value[1] < math.inf


def is_number(value: object) -> bool:
    """Return whether a value is an int or a float and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)
