"""The settings of `paucal check`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.settings.shared import FORWARD_PRECISION_HELP, ForwardPrecision, LabelledDataSettings
from paucal.settings.supervised import MaskFileSettings

_GROUP = "check"


@dataclass(frozen=True)
class CheckSettings(MaskFileSettings, LabelledDataSettings):
    """Every setting of `paucal check`; the command line and `paucal.check` share it."""

    classes: str | None = option(
        "file with the classes to use, or 'imagenet100'; for masks, file with the class names, as in paucal segment",
        group="data",
    )
    verb: Literal["train", "detect", "segment"] | None = option(
        "check the set for this training command (default: the command that fits its layout)", group="data"
    )
    target: str | None = option("table column with the target value of each image, as in paucal train", group="data")
    labels: bool = option(
        "list labels that are probably wrong, with classifiers fitted on other images; takes minutes",
        False,
        group=_GROUP,
    )
    model: str | None = option(
        "model whose frozen features are used: a run folder or a timm model with weights on this machine; by "
        "default the first pretrained weights on this machine or, if there are none, the pixels",
        group=_GROUP,
    )
    img_size: list[int] | None = option("input size of the model in pixels", group=_GROUP)
    output: str | None = option("folder for check.html, check.json and contact_sheet.png", group=_GROUP)
    format: Literal["table", "json"] = option("format of the output on the terminal", "table", group=_GROUP)
    seed: int = option("seed of the split and of the folds", 0, group=_GROUP, low=0, high=2**62)
    batch_size: int = option("images per forward pass", 32, group=_GROUP, low=1, high=1 << 20)
    workers: int = option("processes that load images for the model", 0, group=_GROUP, low=0, high=64)
    device: str = option("cpu, cuda or mps", "cpu", group=_GROUP)
    precision: ForwardPrecision | None = option(FORWARD_PRECISION_HELP, group=_GROUP, chosen=True)
