"""The settings of `paucal convert`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.settings.shared import LabelledDataSettings, MaskFileSettings

LayoutName = Literal["yolo", "coco", "voc", "masks", "csv", "folders", "label-studio", "cvat"]


@dataclass(frozen=True)
class ConvertSettings(MaskFileSettings, LabelledDataSettings):
    """All settings of `paucal convert`, used by the command line and by `paucal.convert`."""

    help_group = "convert"
    output: str | None = option("new or empty folder for the images and their labels")
    to: LayoutName | None = option("layout to write")
    classes: str | None = option(
        "file with the classes to use, or 'imagenet100'; for masks, file with the class names, as in paucal segment",
        group="data",
    )
