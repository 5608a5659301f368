"""The settings of `paucal serve`."""

from dataclasses import dataclass

from paucal.settings.options import option
from paucal.settings.shared import FORWARD_PRECISION_HELP, ForwardPrecision

_GROUP = "serving"
_LABELLING = "labelling"


@dataclass(frozen=True)
class ServeSettings:
    """Every setting of `paucal serve`."""

    host: str = option("address to listen on; 0.0.0.0 lets other machines connect", "127.0.0.1", group=_GROUP)
    port: int = option("port to listen on", 8000, group=_GROUP, low=1, high=65535)
    max_upload: int = option("size limit of an uploaded image, in megabytes", 20, group=_GROUP, low=1, high=1024)
    mirror: bool = option(
        "average the predictions for an image and its mirror image; takes twice the time", False, group=_GROUP
    )
    device: str = option("cpu, cuda or mps", "cpu", group=_GROUP)
    precision: ForwardPrecision | None = option(FORWARD_PRECISION_HELP, group=_GROUP, chosen=True)
    label: str | None = option("images to label on the page: a folder, or several separated by ':'", group=_LABELLING)
    save: str | None = option("CSV file for the labels; labels in an existing file are kept", group=_LABELLING)
    classes: list[str] | None = option(
        "classes to choose from, instead of the model's classes; with --classes, no model is needed", group=_LABELLING
    )
