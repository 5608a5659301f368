"""The settings of `paucal serve`."""

from dataclasses import dataclass

from paucal.settings.options import option
from paucal.settings.shared import FORWARD_PRECISION_HELP, ForwardPrecision


@dataclass(frozen=True)
class ServerSettings:
    """The address at which the page is served, and the options of its predictions."""

    help_group = "serving"
    host: str = option("address to listen on; 0.0.0.0 lets other machines connect", "127.0.0.1")
    port: int = option("port to listen on", 8000, low=1, high=65535)
    max_upload: int = option("size limit of an uploaded image, in megabytes", 20, low=1, high=1024)
    mirror: bool = option("average the predictions for an image and its mirror image; takes twice the time", False)
    device: str = option("cpu, cuda or mps", "cpu")
    precision: ForwardPrecision | None = option(FORWARD_PRECISION_HELP, chosen=True)


@dataclass(frozen=True)
class LabellingSettings:
    """Settings of the web page for labelling."""

    help_group = "labelling"
    label: str | None = option("images to label on the page: a folder, or several separated by ':'")
    save: str | None = option("CSV file for the labels; labels in an existing file are kept")
    classes: list[str] | None = option(
        "classes to choose from, instead of the model's classes; with --classes, no model is needed"
    )


@dataclass(frozen=True)
class ServeSettings(LabellingSettings, ServerSettings):
    """Every setting of `paucal serve`."""
