"""The settings of `paucal next`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.settings.shared import DataSettings

_GROUP = "choice"
_FILES = "output"


@dataclass(frozen=True)
class NextSettings(DataSettings):
    """Every setting of `paucal next`; the command line and `paucal.next_images` share it."""

    count: int = option("number of images to choose", 50, group=_GROUP, low=1, high=10_000)
    random_share: float = option(
        "fraction of these images that is drawn at random, for an unbiased test", 0.1, group=_GROUP, low=0, high=1
    )
    copies: Literal["leave-out", "keep"] = option(
        "how to handle images that look like a labelled image or another unlabelled image", "leave-out", group=_GROUP
    )
    seed: int = option("seed of the random draws", 0, group=_GROUP, low=0, high=(1 << 32) - 1)
    device: str = option("cpu, cuda or mps", "cpu", group=_GROUP)
    output: str | None = option("CSV file for the list of images, with predictions and reasons", group=_FILES)
    sheet: str | None = option("PNG or JPEG file for a contact sheet of the images with the reasons", group=_FILES)
    to: Literal["label-studio", "cvat", "coco", "yolo", "voc", "csv", "folders", "masks"] | None = option(
        "layout of a labelling tool for copies of the images, with predictions to correct", group=_FILES
    )
    folder: str | None = option("new or empty folder for the copies in the layout of --to", group=_FILES)
