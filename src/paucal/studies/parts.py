"""What studies share: sets of images, and models at full size with what takes their place at the smaller scales."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NETWORKS = ("", "detector", "cascade", "upernet")


@dataclass(frozen=True)
class DataSet:
    """A set of images that a paper used.

    Attributes:
        title: its name for people.
        train: images to train on.
        test: images to test with, as they are used.
        classes: of the images.
        named: the name under which paucal reads it; "" where it has none.
        how: how its files are had, where they do not come by themselves.
        settings: of the verb that reads it.
    """

    title: str
    train: int
    test: int
    classes: int
    named: str = ""
    how: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Architecture:
    """A model with the arguments of its constructor.

    Attributes:
        name: as timm or paucal know it.
        args: each as NAME=VALUE.
    """

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """What a row trains.

    Attributes:
        full: as published.
        gmacs: multiply-adds of an image in billions, with those of attention; what the cost is estimated from.
        side: of the images in pixels.
        standin: what takes its place at the smaller scales; None where nothing does.
        network: around it, of those in `NETWORKS`; "" for the model alone.
        shape: height and width of the images of a network, in pixels.
        width: channels of a segmenter's head.
    """

    full: Architecture
    gmacs: float
    side: int = 224
    standin: Architecture | None = None
    network: str = ""
    shape: tuple[int, ...] = ()
    width: int = 512
