"""The settings of `paucal label`."""

from dataclasses import dataclass

from paucal.settings.options import option
from paucal.settings.shared import LabelledDataSettings

MIN_ACCURACY = 0.5  # default fraction of labelled images that the mean of their maps must classify correctly


@dataclass(frozen=True)
class LabelSettings(LabelledDataSettings):
    """All settings of `paucal label`, used by the command line and by `paucal.label`."""

    help_group = "label maps"
    teacher: str | None = option("run folder, or a timm model with its weights")
    output: str | None = option("folder for the maps; must be given")
    from_published: str | None = option("folder of published maps to convert, instead of --teacher")
    published_classes: str | None = option(
        "file with the names of the published maps' classes, one per line in the order of their numbers (default: the "
        "classes of DATA)"
    )
    picture: str | None = option("PNG file to draw the maps of some images into")
    top_k: int = option("number of classes kept at each grid position", 5, low=1, high=1_000_000)
    img_size: list[int] | None = option("side of the teacher's input in pixels")
    min_accuracy: float = option("minimum accuracy of the teacher's maps, from 0 to 1", MIN_ACCURACY, low=0, high=1)
    batch_size: int = option("images per forward pass", 32, low=1, high=1 << 20)
    workers: int = option("processes that load images", 0, low=0, high=64)
    device: str = option("cpu, cuda or mps", "cpu")
