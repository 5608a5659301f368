"""The settings of `paucal check`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.settings.shared import FORWARD_PRECISION_HELP, ForwardPrecision, LabelledDataSettings, MaskFileSettings


@dataclass(frozen=True)
class CheckedDataSettings(MaskFileSettings, LabelledDataSettings):
    """The data set to check."""

    help_group = "data"
    classes: str | None = option(
        "file with the classes to use, or 'imagenet100'; for masks, file with the class names, as in paucal segment"
    )
    verb: Literal["train", "detect", "segment"] | None = option(
        "check the set for this training command (default: the command that fits its layout)"
    )
    target: str | None = option("table column with the target value of each image, as in paucal train")


@dataclass(frozen=True)
class CheckSettings(CheckedDataSettings):
    """All settings of `paucal check`, used by the command line and by `paucal.check`."""

    help_group = "check"
    labels: bool = option(
        "list labels that are probably wrong, with classifiers fitted on other images; takes minutes", False
    )
    model: str | None = option(
        "model whose frozen features are used: a run folder or a timm model with weights on this machine; by "
        "default the first pretrained weights on this machine or, if there are none, the pixels"
    )
    img_size: list[int] | None = option("input size of the model in pixels")
    output: str | None = option("folder for check.html, check.json and contact_sheet.png")
    format: Literal["table", "json"] = option("format of the output on the terminal", "table")
    seed: int = option("seed of the split and of the folds", 0, low=0, high=2**62)
    batch_size: int = option("images per forward pass", 32, low=1, high=1 << 20)
    workers: int = option("processes that load images for the model", 0, low=0, high=64)
    device: str = option("cpu, cuda or mps", "cpu")
    precision: ForwardPrecision | None = option(FORWARD_PRECISION_HELP, chosen=True)
