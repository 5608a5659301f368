"""The settings of `paucal next`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.settings.shared import DataSettings


@dataclass(frozen=True)
class ChoiceSettings:
    """How images are chosen."""

    help_group = "choice"
    count: int = option("number of images to choose", 50, low=1, high=10_000)
    random_share: float = option(
        "fraction of these images that is drawn at random, for an unbiased test", 0.1, low=0, high=1
    )
    copies: Literal["leave-out", "keep"] = option(
        "how to handle images that look like a labelled image or another unlabelled image", "leave-out"
    )
    seed: int = option("seed of the random draws", 0, low=0, high=(1 << 32) - 1)
    device: str = option("cpu, cuda or mps", "cpu")


@dataclass(frozen=True)
class OutputSettings:
    """The files to write."""

    help_group = "output"
    output: str | None = option("CSV file for the list of images, with predictions and reasons")
    sheet: str | None = option("PNG or JPEG file for a contact sheet of the images with the reasons")
    to: Literal["label-studio", "cvat", "coco", "yolo", "voc", "csv", "folders", "masks"] | None = option(
        "layout of a labelling tool for copies of the images, with predictions to correct"
    )
    folder: str | None = option("new or empty folder for the copies in the layout of --to")


@dataclass(frozen=True)
class NextSettings(OutputSettings, ChoiceSettings, DataSettings):
    """All settings of `paucal next`, used by the command line and by `paucal.next_images`."""
