"""The settings of `paucal predict`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option

_GROUP = "prediction"


@dataclass(frozen=True)
class PredictSettings:
    """Every setting of `paucal predict`; the command line and `paucal.predict` share it."""

    batch_size: int = option("images per forward pass", 64, group=_GROUP, low=1, high=1 << 20)
    device: str = option("cpu, cuda or mps", "cpu", group=_GROUP)
    mirror: bool = option(
        "average the answers for an image and its mirror image; takes twice the time", False, group=_GROUP
    )
    on_bad_image: Literal["refuse", "skip"] = option("unreadable images", "refuse", group=_GROUP)
