"""Facts about the data, the machine and the initial weights, from which rules choose settings."""

from dataclasses import dataclass

import torch

# Images seen in training (epochs times images): after 10 epochs on 10,000 small photographs, weights were hardly better
# than random ones for fine-tuning; after 100 epochs on 5,000, they were clearly better.
UNDERTRAINED_IMAGES = 300_000


@dataclass(frozen=True)
class StartFacts:
    """Facts about the initial weights of a run, known before the weights are read.

    Attributes:
        where: Name of the weights in messages, such as "timm's weights" or the path of a run.
        model: timm name of the model; None if unknown.
        image_size: (height, width) of the training images in pixels; None for the default size of the model.
        model_args: Constructor arguments of the model, as NAME=VALUE.
        normalise: Value of the setting `normalise` that suits the weights.
        chosen: Whether the run chose the weights itself, and auto-tunes from them in its time budget.
        shown: Images seen in training (epochs times images), summed over the runs of paucal that trained the weights
            from random ones; None if unknown.
    """

    where: str
    model: str | None = None
    image_size: tuple[int, int] | None = None
    model_args: tuple[str, ...] = ()
    normalise: str = "computed"
    chosen: bool = False
    shown: int | None = None

    @property
    def undertrained(self) -> bool:
        """Whether the weights were trained on so few images that fine-tuning need not preserve them."""
        return self.shown is not None and self.shown < UNDERTRAINED_IMAGES


def describe_undertrained(start: StartFacts) -> str:
    """Return the reason why fine-tuning does not try to preserve the initial weights."""
    return f"{start.where} was trained on only {start.shown:,} images: not worth preserving"


@dataclass(frozen=True)
class DataAndMachine:
    """Facts about the data, the machine and the initial weights.

    Attributes:
        n_train: Number of training images.
        median_side: Median of the images' shorter sides in pixels.
        hinted_size: Image size in pixels that the data set recommends; None without a recommendation.
        hinted_epochs: Number of epochs that the data set recommends; None without a recommendation.
        flip: Whether a mirrored image has the same meaning.
        cores: Number of CPU cores.
        device: The best available device: "cuda", "mps" or "cpu".
        bf16: Whether the device supports bfloat16 natively.
        devices: Number of devices of this kind.
        launched: (processes per node, nodes) that a launcher has started; None without a launcher.
        start: Facts about the initial weights; None for training from scratch.
        several_labels: Whether an image can have any number of labels.
        n_images: Number of all images, including those that the run does not use.
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
    start: StartFacts | None = None
    several_labels: bool = False
    n_images: int = 0


def makes_few_passes(facts: DataAndMachine, time: str | None) -> bool:
    """Return whether a run fine-tunes within a time budget, where it makes fewer epochs than published schedules."""
    return facts.start is not None and (facts.start.chosen or time is not None)


def best_device() -> tuple[str, bool]:
    """Return the best device of this machine, and whether it supports bfloat16 natively."""
    if torch.cuda.is_available():
        return "cuda", torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.backends.mps.is_available():
        return "mps", False
    return "cpu", False
