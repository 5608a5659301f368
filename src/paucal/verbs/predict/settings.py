"""The settings of `paucal predict`: how to predict, and which files to write."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import option
from paucal.settings.shared import FORWARD_PRECISION_HELP, ForwardPrecision
from paucal.verbs.convert.settings import Form

_GROUP = "prediction"


@dataclass(frozen=True)
class PredictSettings:
    """Every setting of `paucal predict`; the command line and `paucal.predict` share it."""

    batch_size: int | None = option("images per forward pass", group=_GROUP, low=1, high=1 << 20, chosen=True)
    device: str = option("cpu, cuda or mps", "cpu", group=_GROUP)
    precision: ForwardPrecision | None = option(
        f"{FORWARD_PRECISION_HELP}; for videos and watched folders bfloat16 only if requested",
        group=_GROUP,
        chosen=True,
    )
    mirror: bool = option(
        "average the predictions for an image and its mirror image; takes twice the time", False, group=_GROUP
    )
    scales: list[float] | None = option(
        "segmentation: image scales over which predictions are averaged, such as 0.75 1 1.25 (default: only 1)",
        group=_GROUP,
    )
    on_bad_image: Literal["refuse", "skip"] = option("how to handle unreadable images", "refuse", group=_GROUP)

    @property
    def test_scales(self) -> tuple[float, ...]:
        """Image scales over which a segmentation model averages its predictions; (1.0,) by default."""
        return tuple(self.scales or (1.0,))


_MOVING = "videos, cameras and watched folders"


@dataclass(frozen=True)
class MovingSettings:
    """Settings of `paucal predict` for videos, cameras and watched folders."""

    every: str = option("videos and cameras: time between two frames, such as 0.5s, or 'frame'", "1s", group=_MOVING)
    watch: str | None = option(
        "folder to watch: each new image is classified once, when its file is complete", group=_MOVING
    )
    idle: str | None = option("--watch: end after this time without a new image (default: never)", group=_MOVING)
    annotated: str | None = option("video: .mp4 file for a copy with drawn predictions; needs --output", group=_MOVING)


_FILES = "what is written"


@dataclass(frozen=True)
class OutputSettings:
    """Settings of the files that `paucal predict` writes; the Python functions return these values instead."""

    format: Literal["csv", "json"] | None = option(
        "format of the predictions; for a detector, json is the COCO format (default: extension of --output, else csv)",
        group=_FILES,
    )
    to: Form | None = option(
        "write the predictions as labels, with copies of the images, in this layout of paucal convert, into the "
        "folder --output",
        group=_FILES,
    )
    top_k: int | None = option(
        "write only this number of most probable classes (default: a column per class)", group=_FILES, low=1, high=10**6
    )
    output: str | None = option("file for predictions (default: standard output), or folder for masks", group=_FILES)
    features: str | None = option(
        "Parquet file for features (input of the final linear classifier), a row per image", group=_FILES
    )
    pictures: str | None = option("folder for copies of the images with drawn detections", group=_FILES)
    sheet: str | None = option(
        "PNG or JPEG file for a contact sheet: images of each class, from the most to the least confident", group=_FILES
    )
