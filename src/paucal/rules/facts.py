"""What the automatic settings look at."""

from dataclasses import dataclass

import torch

# Images shown: ten passes over 10,000 small photographs hardly beat random weights, a hundred over 5,000 do.
UNDERTRAINED = 300_000


@dataclass(frozen=True)
class StartFacts:
    """What is known about the weights that a run starts from, before they are read.

    Attributes:
        where: their name for people.
        model: timm name of their model; None where unknown.
        image_size: (height, width) in pixels they were trained at; None for the size their model was designed for.
        model_args: constructor arguments they were given, as NAME=VALUE.
        normalise: the setting that gives images their mean and standard deviation.
        chosen: Whether the run chose them itself, and auto-tunes from them in its time budget.
        shown: images that they have been shown in all, where they began at random in runs of paucal; None where others
            trained them, or where nobody knows.
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
        """Whether they know so little that being careful with them costs more than it keeps."""
        return self.shown is not None and self.shown < UNDERTRAINED


def describe_undertrained(start: StartFacts) -> str:
    """Return why a start is not handled with care."""
    return f"{start.where} has been shown {start.shown:,} images: too little to be careful with"


@dataclass(frozen=True)
class DataAndMachine:
    """Plain numbers about the data and the machine.

    Attributes:
        n_train: training images.
        n_classes: classes.
        median_side: median of the shorter sides in pixels.
        hinted_size: side in pixels that the source recommends, or None.
        hinted_epochs: passes that the source recommends, or None.
        flip: whether a mirrored image means the same.
        cores: processor cores.
        device: "cuda", "mps" or "cpu": the best there is.
        bf16: whether that device computes in bfloat16 natively.
        devices: how many of them there are.
        launched: (processes per node, nodes) that a launcher has started, or None.
        start: the weights the run starts from; None where it starts from scratch.
        several_labels: whether an image may have several labels, or none.
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


def makes_few_passes(facts: DataAndMachine, time: str | None) -> bool:
    """Return whether a run tunes trained weights for a time, not for a schedule: a paper's is made for long ones."""
    return facts.start is not None and (facts.start.chosen or time is not None)


def best_device() -> tuple[str, bool]:
    """Return the best device of this machine and whether it has native bfloat16."""
    if torch.cuda.is_available():
        return "cuda", torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.backends.mps.is_available():
        return "mps", False
    return "cpu", False
