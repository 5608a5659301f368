"""Properties of the data, the machine and the initial weights, from which rules choose settings."""

from dataclasses import dataclass

import torch

# Number of images seen in training (epochs times images) below which weights count as undertrained. Weights trained for
# 10 epochs on 10,000 small photographs were hardly better for fine-tuning than random weights; weights trained for 100
# epochs on 5,000 photographs were clearly better.
UNDERTRAINED_IMAGES = 300_000


@dataclass(frozen=True)
class InitialWeightsInfo:
    """Properties of the initial weights of a run that are known before the weights are read.

    Attributes:
        where: Name of the weights in messages, such as "timm's weights" or the path of a run.
        model: Name of the model in timm; None if unknown, or if the user names the model of a weights file.
        image_size: (height, width) in pixels of the images that the weights were trained on; None for the default size
            of the model.
        model_args: Constructor arguments of the model, as NAME=VALUE.
        normalise: Value of the setting `normalise` that suits the weights.
        chosen: Whether the run chose the weights itself and auto-tunes from these weights within its time budget.
        images_seen: Number of images seen in training (epochs times images), summed over all paucal runs that trained
            the weights, beginning with random weights; None if unknown.
    """

    where: str
    model: str | None = None
    image_size: tuple[int, int] | None = None
    model_args: tuple[str, ...] = ()
    normalise: str = "computed"
    chosen: bool = False
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
    """Properties of the data, the machine and the initial weights.

    Attributes:
        n_train: Number of training images.
        n_classes: Number of classes.
        median_side: Median of the images' shorter sides in pixels.
        hinted_size: Recommended image side for the data set in pixels; None if there is no recommendation.
        hinted_epochs: Recommended number of epochs for the data set; None if there is no recommendation.
        flip: Whether mirroring an image leaves its meaning unchanged.
        cores: Number of CPU cores.
        device: Best available device: "cuda", "mps" or "cpu".
        bf16: Whether the device supports bfloat16 natively.
        devices: Number of devices of the type `device`.
        launched: (number of processes per node, number of nodes) of a launcher; None if there is no launcher.
        initial_weights: Properties of the initial weights; None for training from scratch.
        several_labels: Whether an image can have several labels, or none.
        n_images: Number of all images, including images that the run does not use.
    """

    n_train: int
    n_classes: int
    median_side: int
    hinted_size: int | None = None
    hinted_epochs: int | None = None
    flip: bool = True
    cores: int = 1
    device: str = "cpu"
    bf16: bool = False
    devices: int = 1
    launched: tuple[int, int] | None = None
    initial_weights: InitialWeightsInfo | None = None
    several_labels: bool = False
    n_images: int = 0


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
