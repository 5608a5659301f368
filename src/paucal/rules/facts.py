"""The facts that automatic settings depend on: the data, the machine and the initial weights."""

from dataclasses import dataclass

import torch

# Counted in images seen: 10 passes over 10,000 small photographs barely beat random weights; 100 over 5,000 clearly do.
UNDERTRAINED = 300_000


@dataclass(frozen=True)
class StartFacts:
    """Facts about the initial weights of a run, before they are read.

    Attributes:
        where: Name for messages.
        model: timm name of their model; None if unknown.
        image_size: (height, width) of their training images in pixels; None for the default size of their model.
        model_args: Constructor arguments of their model, as NAME=VALUE.
        normalise: Value of the setting `normalise` that fits them.
        chosen: Whether the run chose them itself, and auto-tunes from them in its time budget.
        shown: Total number of images in their training, if runs of paucal trained them from random weights; None if
            unknown.
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
        """Whether the weights were trained on so few images that careful fine-tuning costs more than it preserves."""
        return self.shown is not None and self.shown < UNDERTRAINED


def describe_undertrained(start: StartFacts) -> str:
    """Return the reason for not protecting pretrained weights in fine-tuning: they were trained on few images."""
    return f"{start.where} was trained on only {start.shown:,} images: not worth preserving"


@dataclass(frozen=True)
class DataAndMachine:
    """Numbers about the data and the machine, for the automatic settings.

    Attributes:
        median_side: Median of the shorter sides of images in pixels.
        hinted_size: Image size in pixels that the source recommends, or None.
        hinted_epochs: Epochs that the source recommends, or None.
        flip: Whether a mirrored image has the same meaning.
        device: "cuda", "mps" or "cpu": the best available.
        bf16: Whether the device computes in bfloat16 natively.
        launched: (processes per node, nodes) that a launcher has started, or None.
        start: Facts about the initial weights; None for training from scratch.
        several_labels: Whether an image may have several labels, or none.
        n_images: Number of all images, including unused ones.
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
    """Return whether a run fine-tunes within a time budget, which is too short for the papers' long schedules."""
    return facts.start is not None and (facts.start.chosen or time is not None)


def best_device() -> tuple[str, bool]:
    """Return the best device of this machine and whether it has native bfloat16."""
    if torch.cuda.is_available():
        return "cuda", torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.backends.mps.is_available():
        return "mps", False
    return "cpu", False
