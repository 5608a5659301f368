"""Choose settings from the data and the machine by rules; each value is printed with the reason for the choice.

A rule is a function that has the name of the setting that it chooses. Its parameters are the inputs of the choice:
other settings, properties of the settings class such as `effective_batch`, `facts`, which is a `DataAndMachine`, and
`shape`, a function that returns the `BackboneShape` of the settings. A rule returns a value and a reason. If the value
is None, the setting is left unchanged. Rules run in order, so a rule sees the settings that the user gave and the
settings that earlier rules chose.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
from torch import nn

from paucal.backbones.attention_maps import attention_layers
from paucal.backbones.empty_models import build_empty
from paucal.backbones.layers import count_stages
from paucal.backbones.sizing import fit_to_image_size, fit_to_image_sizes
from paucal.backbones.spec import BackboneSpec
from paucal.reading import parse_yaml
from paucal.settings.options import CHOSEN_BY_RULE, DEFAULT_SIDE
from paucal.settings.shared import JobSettings, ModelSettings
from paucal.types import UserError, height_and_width

# Number of images seen in training (epochs times images) below which weights count as undertrained. Weights trained for
# 10 epochs on 10,000 small photographs were hardly better for fine-tuning than random weights; weights trained for 100
# epochs on 5,000 photographs were clearly better.
UNDERTRAINED_IMAGES = 300_000
# Settings that depend on the number of epochs. These settings are None as long as the number of epochs has not been
# planned from the time budget, and if the number of epochs is 0.
EPOCH_DEPENDENT = ("schedule_epochs", "warmup_epochs", "average")
S = TypeVar("S", bound=JobSettings)


@dataclass(frozen=True)
class InitialWeightsInfo:
    """Properties of the initial weights of a run that are known before the weights are read."""

    where: str  # name of the weights in messages, such as "timm's weights" or the path of a run
    # Name of the model in timm; None if unknown, or if the user names the model of a weights file
    model: str | None = None
    # (height, width) in pixels of the images that the weights were trained on; None for the default size of the model
    image_size: tuple[int, int] | None = None
    model_args: tuple[str, ...] = ()  # constructor arguments of the model, as NAME=VALUE
    normalise: str = "computed"  # value of the setting `normalise` that suits the weights
    # Whether the run chose the weights itself and auto-tunes from these weights within its time budget
    chosen: bool = False
    # Number of images seen in training (epochs times images), summed over all paucal runs that trained the weights,
    # beginning with random weights; None if unknown
    images_seen: int | None = None

    @property
    def undertrained(self) -> bool:
        """Whether the weights were trained on so few images that fine-tuning need not preserve their features."""
        return self.images_seen is not None and self.images_seen < UNDERTRAINED_IMAGES


def describe_undertrained(weights: InitialWeightsInfo) -> str:
    """Return the reason for fine-tuning without an effort to preserve the features of the initial weights."""
    return f"{weights.where} was trained on only {weights.images_seen:,} images: not worth preserving"


@dataclass(frozen=True)
class DataAndMachine:
    """Properties of the data, the machine and the initial weights."""

    n_train: int
    n_classes: int
    median_side: int  # median of the images' shorter sides in pixels
    # Recommended image side for the data set in pixels; None if there is no recommendation
    hinted_size: int | None = None
    # Recommended number of epochs for the data set; None if there is no recommendation
    hinted_epochs: int | None = None
    flip: bool = True  # whether mirroring an image leaves its meaning unchanged
    cores: int = 1
    device: str = "cpu"  # best available device: "cuda", "mps" or "cpu"
    bf16: bool = False  # whether the device supports bfloat16 natively
    devices: int = 1  # number of devices of the type `device`
    # (number of processes per node, number of nodes) of a launcher; None if there is no launcher
    launched: tuple[int, int] | None = None
    # Properties of the initial weights; None for training from scratch
    initial_weights: InitialWeightsInfo | None = None
    several_labels: bool = False  # whether an image can have several labels, or none
    n_images: int = 0  # number of all images, including images that the run does not use


def makes_few_passes(facts: DataAndMachine, time: str | None) -> bool:
    """Return whether a run fine-tunes within a time budget, which allows fewer epochs than published schedules."""
    return facts.initial_weights is not None and (facts.initial_weights.chosen or time is not None)


def device_or_best(device: str | None) -> str:
    """Return a device that the user gave, or the best device of this machine if none was given."""
    return device or best_device()[0]


def best_device() -> tuple[str, bool]:
    """Return the best device of this machine, and whether it supports bfloat16 natively."""
    if torch.cuda.is_available():
        return "cuda", torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.backends.mps.is_available():
        return "mps", False
    return "cpu", False


def backbone_spec(settings: ModelSettings, n_classes: int, channels: int = 3) -> tuple[BackboneSpec, list[str]]:
    """Return the backbone's spec, with arguments that suit the image size unless the user gave others, and notes."""
    size, name = height_and_width(settings.img_size), settings.model
    user_arguments = model_arguments(settings.model_args)
    sizing = fit_to_image_size(name, size, user_arguments)
    notes = [text for text in (sizing.reason, sizing.warning) if text]
    # The spec that is stored with the run includes the chosen arguments, since later versions may choose differently.
    size_arguments = {key: value for key, value in sizing.arguments.items() if key != "img_size"}
    arguments = {**size_arguments, **user_arguments}
    return BackboneSpec(name, n_classes, in_chans=channels, image_size=size, arguments=arguments), notes


@dataclass(frozen=True)
class BackboneShape:
    """Properties of a backbone that rules depend on."""

    grid: tuple[int, int]  # size of the last feature map as (rows, columns)
    dim: int  # number of channels of the last feature map
    convolutional: bool  # whether the network has overlapping convolutions and no attention
    stages: int  # number of stages, or number of blocks if there are no stages; 0 if both are unknown


def backbone_shape(
    model: str | None, model_args: Sequence[str] | None, img_size: Sequence[int] | None
) -> BackboneShape:
    """Return the properties of a backbone without computing a forward pass."""
    return _backbone_shape(model or "", height_and_width(img_size or DEFAULT_SIDE), tuple(model_args or ()))


@lru_cache(maxsize=256)
def _backbone_shape(name: str, size: tuple[int, int], model_args: tuple[str, ...]) -> BackboneShape:
    user_arguments = model_arguments(model_args)
    sizing = fit_to_image_size(name, size, user_arguments)
    model = build_empty(name, {**sizing.arguments, **user_arguments})
    layers = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    has_overlap = any(max(layer.kernel_size) > max(layer.stride) for layer in layers)
    channels = int(model.num_features)  # type: ignore[arg-type]
    stages = 0
    with suppress(UserError):
        stages = count_stages(model)
    return BackboneShape(sizing.grid, channels, has_overlap and not attention_layers(model), stages)


def supports_sides(model: str | None, model_args: Sequence[str] | None, sides: Sequence[int]) -> bool:
    """Return whether a backbone that is built for the first of several image sides accepts images of all sides."""
    name, sizes = model or "", [(side, side) for side in sides]
    user_arguments = model_arguments(model_args)
    try:
        size_arguments = fit_to_image_size(name, sizes[0], user_arguments).arguments
        fit_to_image_sizes(name, sizes, {**size_arguments, **user_arguments})
    except UserError:
        return False
    return True


def model_arguments(words: Sequence[str] | None) -> dict[str, Any]:
    """Parse NAME=VALUE words; values are parsed as YAML, so `4`, `true` and `[1, 2]` become an int, a bool and a list.

    Example:
        >>> model_arguments(["patch_size=2", "depths=[2, 2]", "qkv_bias=false"])
        {'patch_size': 2, 'depths': [2, 2], 'qkv_bias': False}
    """
    arguments = {}
    for argument in words or ():
        name, equals, value = argument.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--model-args: {argument!r} is not of the form NAME=VALUE, for instance patch_size=4.")
        try:
            arguments[name] = parse_yaml(value)
        except ValueError:
            raise UserError(f"--model-args: the value of {argument!r} is not valid YAML; quote the value.") from None
    return arguments


Choice = tuple[Any, str]  # value of a setting (or None) and the reason for the value
Rule = Callable[..., Choice]
Shape = Callable[[], BackboneShape]  # input `shape` of a rule


def rules_by_name(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Return rules by the name of the setting that each rule chooses."""
    return {rule.__name__: rule for rule in rules}


def resolve(settings: S, facts: DataAndMachine, rules: Mapping[str, Rule]) -> tuple[S, dict[str, str]]:
    """Choose every setting that is None or "auto" and has a rule; return the settings, and the reasons by name.

    Afterwards a setting is None only if its type allows None, so code that reads settings needs no defaults.
    """
    reasons: dict[str, str] = {}
    hints = typing.get_type_hints(type(settings))
    for name, rule in rules.items():
        if getattr(settings, name) not in (CHOSEN_BY_RULE, "auto"):
            continue
        shape = partial(backbone_shape, settings.model, settings.model_args, settings.img_size)
        extra_inputs: dict[str, Any] = {"facts": facts, "shape": shape}
        inputs = {
            item: extra_inputs[item] if item in extra_inputs else getattr(settings, item)
            for item in inspect.signature(rule).parameters
        }
        value, reason = rule(**inputs)
        if value is not None:
            reasons[name], settings = reason, replace(settings, **{name: value})
        elif type(None) not in typing.get_args(hints[name]) and (name not in EPOCH_DEPENDENT or settings.epochs):
            raise RuntimeError(f"the rule for {name} chose no value")
    return settings, reasons
