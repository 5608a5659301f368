"""The settings of `paucal predict`: how to predict, and which files to write."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.settings.shared import FORWARD_PRECISION_HELP, ForwardPrecision
from paucal.verbs.convert.settings import LayoutName


@dataclass(frozen=True)
class PredictSettings:
    """All settings of `paucal predict`, used by the command line and by `paucal.predict`."""

    help_group = "prediction"
    batch_size: int | None = option("images per forward pass", low=1, high=1 << 20, chosen=True)
    device: str = option("cpu, cuda or mps", "cpu")
    precision: ForwardPrecision | None = option(
        f"{FORWARD_PRECISION_HELP}; for videos and watched folders bfloat16 only if requested", chosen=True
    )
    mirror: bool = option("average the predictions for an image and its mirror image; takes twice the time", False)
    scales: list[float] | None = option(
        "segmentation: image scales over which predictions are averaged, such as 0.75 1 1.25 (default: only 1)"
    )
    on_bad_image: Literal["refuse", "skip"] = option("how to handle unreadable images", "refuse")

    @property
    def test_scales(self) -> tuple[float, ...]:
        """Image scales over which a segmentation model averages its predictions; (1.0,) by default."""
        return tuple(self.scales or (1.0,))


@dataclass(frozen=True)
class MovingSettings:
    """Settings of `paucal predict` for videos, cameras and watched folders."""

    help_group = "videos, cameras and watched folders"
    every: str = option("videos and cameras: time between two frames, such as 0.5s, or 'frame'", "1s")
    watch: str | None = option("folder to watch: each new image is classified once, when its file is complete")
    idle: str | None = option("--watch: end after this time without a new image (default: never)")
    annotated: str | None = option("video: .mp4 file for a copy with drawn predictions; needs --output")


@dataclass(frozen=True)
class OutputSettings:
    """Settings of the files that `paucal predict` writes; `paucal.predict` returns Python objects instead."""

    help_group = "output"
    format: Literal["csv", "json"] | None = option(
        "format of the predictions; for a detector, json is the COCO format (default: extension of --output, else csv)"
    )
    to: LayoutName | None = option(
        "write the predictions as labels, with copies of the images, in this layout of paucal convert, into the "
        "folder --output"
    )
    top_k: int | None = option(
        "write only this number of most probable classes (default: a column per class)", low=1, high=10**6
    )
    output: str | None = option("file for predictions (default: standard output), or folder for masks")
    features: str | None = option("Parquet file for features (input of the final linear classifier), a row per image")
    pictures: str | None = option("folder for copies of the images with drawn detections")
    sheet: str | None = option(
        "PNG or JPEG file for a contact sheet: images of each class, from the most to the least confident"
    )
