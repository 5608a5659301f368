"""The settings of `paucal label`."""

from dataclasses import dataclass

from paucal.settings.options import option
from paucal.settings.shared import LabelledDataSettings

MIN_ACCURACY = 0.5  # default fraction of labelled images that the mean of their maps must classify correctly
_GROUP = "label maps"


@dataclass(frozen=True)
class LabelSettings(LabelledDataSettings):
    """Every setting of `paucal label`; the command line and `paucal.label` share it."""

    teacher: str | None = option("run folder, or a timm model with its weights", group=_GROUP)
    output: str | None = option("folder for the maps; must be given", group=_GROUP)
    from_published: str | None = option("folder of published maps to convert, instead of --teacher", group=_GROUP)
    published_classes: str | None = option(
        "file with the names of the published maps' classes, one per line in the order of their numbers (default: the "
        "classes of DATA)",
        group=_GROUP,
    )
    picture: str | None = option("PNG file to draw the maps of some images into", group=_GROUP)
    top_k: int = option("number of classes kept at each grid position", 5, group=_GROUP, low=1, high=1_000_000)
    img_size: list[int] | None = option("side of the teacher's input in pixels", group=_GROUP)
    min_accuracy: float = option(
        "minimum accuracy of the teacher's maps, from 0 to 1", MIN_ACCURACY, group=_GROUP, low=0, high=1
    )
    batch_size: int = option("images per forward pass", 32, group=_GROUP, low=1, high=1 << 20)
    workers: int = option("processes that load images", 0, group=_GROUP, low=0, high=64)
    device: str = option("cpu, cuda or mps", "cpu", group=_GROUP)
