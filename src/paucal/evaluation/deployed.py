"""A trained model as it is deployed: weights, preprocessing and class names, from the files of a run."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from paucal.backbones.spec import BackboneSpec
from paucal.data.channels.arrays import MOST_CHANNELS
from paucal.data.channels.decoding import as_read
from paucal.data.class_names import plain_if_distinct
from paucal.data.decode import Reading
from paucal.data.decoded.prepare import side_for
from paucal.data.given import given_images, given_path
from paucal.data.views.augment import RESAMPLING, Interpolation, Resize
from paucal.data.views.normalisation import Normalisation
from paucal.data.views.transforms import EvalTransform
from paucal.evaluation.tta import MirrorAveraged
from paucal.runs import RunFolder, open_model, read_weights, save_weights, write_text
from paucal.types import UserError

FORMAT = 1
FORMAT_OF_SEVERAL = 2  # of models that give several labels, which programs before them would misread
MAX_SIDE = 4096  # pixels
DEVICES = ("cpu", "cuda", "mps")  # torch has more, such as "meta", which computes nothing
SMALLEST_CROP = 0.1
COLDEST, HOTTEST = 0.01, 100.0  # temperatures of logits


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the model's input.

    Attributes:
        image_size: (height, width) in pixels.
        crop_ratio: side of the centre crop over the side the image is resized to.
        interpolation: "bicubic" or "bilinear".
        mean: per channel, of pixels in [0, 1]; as many as the images have channels.
        std: per channel, of pixels in [0, 1].
        value_range: the values that are black and white in images of more than 8 bits a channel, measured on the
            images of the training; None where those had 8 bits.
        resize: how images of another shape are brought to that of the input: "crop", "letterbox" or "squash".
        channel_ranges: in the place of `value_range`, for each channel, where there are other than three.

    Raises:
        UserError: a value is of the wrong kind or out of range.
    """

    image_size: tuple[int, int]
    crop_ratio: float
    interpolation: Interpolation
    mean: tuple[float, ...]
    std: tuple[float, ...]
    value_range: tuple[float, float] | None = None
    resize: Resize = "crop"
    channel_ranges: tuple[tuple[float, float], ...] | None = None

    def __post_init__(self) -> None:
        if not (len(self.image_size) == 2 and all(type(n) is int and 1 <= n <= MAX_SIDE for n in self.image_size)):
            self._refuse("image_size", f"height and width in pixels, at most {MAX_SIDE}")
        if not _is_number(self.crop_ratio) or not SMALLEST_CROP <= self.crop_ratio <= 1:
            self._refuse("crop_ratio", f"a number from {SMALLEST_CROP} to 1")
        if self.interpolation not in RESAMPLING:
            self._refuse("interpolation", f"one of {', '.join(RESAMPLING)}")
        if len(self.mean) != len(self.std):
            self._refuse("mean", f"as many numbers as std has, {len(self.std)}")
        for name, least in (("mean", -math.inf), ("std", 0.0)):
            values = getattr(self, name)
            if not 1 <= len(values) <= MOST_CHANNELS or not all(
                _is_number(value) and least < value < math.inf for value in values
            ):
                self._refuse(name, "a number for each channel, positive ones for std")
        if self.resize not in get_args(Resize):
            self._refuse("resize", f"one of {', '.join(get_args(Resize))}")
        if self.value_range is not None and not _is_range(self.value_range):
            self._refuse("value_range", "two rising numbers, or none")
        ranges = self.channel_ranges
        if ranges is not None and not (len(ranges) == self.channels and all(map(_is_range, ranges))):
            self._refuse("channel_ranges", "two rising numbers for each channel, or none")

    @property
    def channels(self) -> int:
        """How many channels the model's images have."""
        return len(self.mean)

    def _refuse(self, name: str, expected: str) -> None:
        raise UserError(f"The preprocessing of a model has {name} {getattr(self, name)!r}, expected {expected}.")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without those that most models do not have."""
        usual = {"value_range": None, "resize": "crop", "channel_ranges": None}
        return {name: value for name, value in vars(self).items() if name not in usual or value != usual[name]}

    @property
    def reading(self) -> Reading:
        """How images are read for the model: no larger than it needs, with the values of its training."""
        return Reading(side_for(self.image_size), self.value_range, self.channels, self.channel_ranges)

    def transform(self) -> EvalTransform:
        """Return the function from a PIL image to a (C, H, W) float tensor and its geometry."""
        normalisation = Normalisation(self.mean, self.std)
        return EvalTransform(self.image_size, normalisation, self.crop_ratio, self.interpolation, self.resize)


def _is_range(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2 or not all(_is_number(edge) for edge in value):
        return False
    return -math.inf < value[0] < value[1] < math.inf


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Card:
    """What `model.json` holds.

    Attributes:
        backbone: how to build the model.
        classes: names in the order of the logits.
        preprocessing: how to prepare images.
        temperature: by which logits are divided before they become probabilities, see `evaluation.calibration`.
        thresholds: (K,) probabilities from which on a class is an answer, of a model with one sigmoid per class, whose
            images may have several labels; None of one with a softmax.

    Raises:
        UserError: the temperature or a threshold is out of range.
    """

    backbone: BackboneSpec
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    temperature: float = 1.0
    thresholds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not COLDEST <= self.temperature <= HOTTEST:
            raise UserError(
                f"a model card has temperature {self.temperature!r}, expected a number from {COLDEST} to {HOTTEST}."
            )

        if self.thresholds is not None:
            fits = len(self.thresholds) == len(self.classes) and all(map(_is_number, self.thresholds))
            if not fits or not all(0 < one < 1 for one in self.thresholds):
                raise UserError("a model card has thresholds that are not one number between 0 and 1 for each class.")

    @property
    def several(self) -> bool:
        """Whether the model gives several labels."""
        return self.thresholds is not None

    def shares(self, logits: Tensor) -> Tensor:
        """Return the (N, K) probabilities of (N, K) logits."""
        logits = logits.float() / self.temperature
        return logits.sigmoid() if self.several else logits.softmax(1)

    def with_thresholds(self, thresholds: Sequence[float]) -> "Card":
        """Return the card of the same model with one sigmoid per class and these thresholds."""
        return replace(self, thresholds=tuple(thresholds))

    def at_temperature(self, temperature: float) -> "Card":
        """Return the card of the same model with another temperature."""
        return replace(self, temperature=temperature)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        several = {} if self.thresholds is None else {"thresholds": list(self.thresholds)}
        return {
            "format": FORMAT_OF_SEVERAL if several else FORMAT,
            "backbone": self.backbone.to_dict(),
            "classes": list(self.classes),
            "preprocessing": self.preprocessing.to_dict(),
            "temperature": self.temperature,
            **several,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Card":
        """Read what `to_dict` gave.

        Raises:
            UserError: the values are not those of a model card of this version.
        """
        if (task := value.get("task")) is not None:
            raise UserError(
                f"the model of this run does not classify, it is for {str(task)[:40]}: 'paucal predict' uses it, "
                "or give a run of 'paucal train'."
            )
        try:
            several = value["format"] == FORMAT_OF_SEVERAL
            if value["format"] != FORMAT and not several:
                raise UserError(
                    f"model.json has format {value['format']!r}, this version of paucal reads {FORMAT} and "
                    f"{FORMAT_OF_SEVERAL}."
                )
            plain: dict[str, Any] = {
                name: tuple(entry) if isinstance(entry, list) else entry
                for name, entry in value["preprocessing"].items()
            }
            if "channel_ranges" in plain:
                plain["channel_ranges"] = tuple(map(tuple, plain["channel_ranges"]))
            spec, names = BackboneSpec.from_dict(value["backbone"]), value["classes"]
            # Lengths first: a list of as many types as a hostile card claims classes would fill the memory.
            if not isinstance(names, list) or len(names) != spec.num_classes or not all(type(n) is str for n in names):
                raise UserError(f"model.json must name the {spec.num_classes} classes of its model: restore it.")
            temperature = value.get("temperature", 1.0)  # which older cards lack
            thresholds = tuple(value["thresholds"]) if several else None
            # Images have plain names of classes; a model of an earlier version may have others.
            card = cls(spec, plain_if_distinct(names), Preprocessing(**plain), temperature, thresholds)
            if card.preprocessing.image_size != spec.image_size:
                raise UserError(
                    f"model.json prepares images of {card.preprocessing.image_size} pixels for a model of "
                    f"{spec.image_size}: restore it."
                )
            if card.preprocessing.channels != spec.in_chans:
                raise UserError(
                    f"model.json prepares images of {card.preprocessing.channels} channels for a model of "
                    f"{spec.in_chans}: restore it."
                )
            return card
        except (KeyError, TypeError, AttributeError) as problem:
            raise UserError(
                f"model.json is no model card of paucal ({problem}): restore it or train again."
            ) from problem


@dataclass(frozen=True)
class Deployed:
    """A model ready to classify.

    Attributes:
        module: the timm model, in evaluation mode.
        card: what it is and how to feed it.
        device: where it is.
    """

    module: nn.Module
    card: Card
    device: torch.device

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the probabilities."""
        return self.card.classes

    def require_classifier(self) -> "Deployed":
        """Return the model itself.

        Raises:
            UserError: it is a backbone alone, as pre-training leaves it.
        """
        if not self.classes:
            raise UserError(
                f"the model {self.card.backbone.name} has no classifier, it was pre-trained without labels: fine-tune "
                "it with 'paucal train --init', or judge its features with 'paucal eval --protocol knn'."
            )
        return self

    def mirrored(self) -> "Deployed":
        """Return the model that averages its answers for an image and for its mirror image; takes twice the time."""
        return replace(self, module=MirrorAveraged(self.module))

    @torch.inference_mode()
    def probabilities(self, images: Sequence[Image.Image | np.ndarray]) -> Tensor:
        """Classify PIL images, or arrays (H, W) or (H, W, C) of as many channels as the model reads.

        Returns (N, K) float32 on the CPU. Rows sum to 1, unless the model gives several labels: each class has a
        probability of its own then. Images are turned upright by their EXIF tag and read as the training images were,
        see `decode_image`.

        Raises:
            UserError: the model has no classifier, or something other than images was given.
            ValueError: there is no image, or one has pixels of unknown range or another number of channels.
        """
        self.require_classifier()
        return self.card.shares(self.module(self.prepared(images))).cpu()

    def prepared(self, images: Sequence[Image.Image | np.ndarray]) -> Tensor:
        """Return the model's input (N, C, H, W) on its device; see `probabilities`.

        Raises:
            UserError: something other than images was given.
            ValueError: there is no image, or one has pixels of unknown range or another number of channels.
        """
        given = given_images(images)
        if not given:
            raise ValueError("there are no images to classify")
        transform, reading = self.card.preprocessing.transform(), self.card.preprocessing.reading
        return torch.stack([transform(as_read(image, reading))[0] for image in given]).to(self.device)

    def classify(self, images: Iterable[Image.Image], batch_size: int = 64) -> Iterator[Tensor]:
        """Yield one (K,) row of probabilities per image, holding one batch of images at a time."""
        batch: list[Image.Image] = []
        for image in images:
            batch.append(image)
            if len(batch) == batch_size:
                yield from self.probabilities(batch)
                batch = []
        if batch:
            yield from self.probabilities(batch)


def save_deployed(run: RunFolder, module: nn.Module, card: Card) -> None:
    """Write `model.safetensors` and `model.json`."""
    save_weights(run.weights, module.state_dict())
    write_text(run.card, json.dumps(card.to_dict(), indent=2, ensure_ascii=False) + "\n")


def saver(run: RunFolder, card: Card) -> Callable[[nn.Module], None]:
    """Return a function that writes a module as the run's deployable model."""
    return lambda module: save_deployed(run, module, card)


def load_deployed(run: str | os.PathLike[str] | RunFolder, device: torch.device | str = "cpu") -> Deployed:
    """Load the best model of a run.

    Args:
        run: a run folder.
        device: where to put the model.

    Raises:
        UserError: there is no such run, it has no saved model yet, its files do not fit each other, or torch cannot
            use the device.

    Example:
        >>> model = load_deployed("runs/1")  # doctest: +SKIP
        >>> model.probabilities([Image.open("photo.jpg")])  # doctest: +SKIP
        tensor([[0.0312, 0.9688]])
    """
    folder = run if isinstance(run, RunFolder) else open_model(given_path(run, "the run"))
    target = usable_device(device)
    if folder.last.exists() and not folder.card.exists():
        raise UserError(f"{str(folder.path)!r} was stopped before it saved a model: let it go on with --resume first.")
    card = Card.from_dict(folder.read_json(folder.card.name))
    # All weights come from the run; published ones would be fetched for nothing.
    module = replace(card.backbone, pretrained=False).build().model
    try:
        module.load_state_dict(read_weights(folder.weights))
    except RuntimeError as problem:
        reason = str(problem).split("\n")[1].strip() if "\n" in str(problem) else str(problem)
        raise UserError(f"{str(folder.weights)!r} does not fit its model.json ({reason}).") from problem
    return Deployed(module.eval().to(target), card, target)


def usable_device(device: torch.device | str) -> torch.device:
    """Return the device as torch names it.

    Raises:
        UserError: it is not of a kind that paucal computes on, or torch cannot use it on this machine.
    """
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError):  # torch has one for each way to lack a device
        found = None
    if found is None or found.type not in DEVICES:
        raise UserError(f"the device is {str(device)!r}, and this machine has none that can be used: try cpu.")
    return found
