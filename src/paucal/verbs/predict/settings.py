"""The settings of `paucal predict`: how it predicts, and which files it writes."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.groups import FORWARD_PRECISION_HELP, ForwardPrecision
from paucal.settings.options import option
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
        "segmentation: image scales over which predictions are averaged, such as 0.75 1 1.25; by default the model's",
        group=_GROUP,
    )
    on_bad_image: Literal["refuse", "skip"] = option("unreadable images", "refuse", group=_GROUP)

    @property
    def test_scales(self) -> tuple[float, ...]:
        """Image scales over which a segmentation averages its predictions; (1.0,) by default."""
        return tuple(self.scales or (1.0,))


_MOVING = "videos, cameras and watched folders"


@dataclass(frozen=True)
class MovingSettings:
    """Settings of `paucal predict` for videos, cameras and watched folders."""

    every: str = option("videos and cameras: time between two frames, such as 0.5s, or 'frame'", "1s", group=_MOVING)
    watch: str | None = option(
        "folder to watch: each new picture is classified once, when it is complete", group=_MOVING
    )
    idle: str | None = option("--watch: end after this time without a new picture; by default never", group=_MOVING)
    annotated: str | None = option("video: .mp4 copy with the predictions drawn in; needs --output", group=_MOVING)


_FILES = "what is written"


@dataclass(frozen=True)
class OutputSettings:
    """Settings of the files that `paucal predict` writes; the Python functions return these values instead."""

    format: Literal["csv", "json"] | None = option(
        "format of the predictions; for a detector, json is COCO's; by default the extension of --output, else csv",
        group=_FILES,
    )
    to: Form | None = option(
        "write the predictions as labels, with copies of the images, in this layout of paucal convert, into the "
        "folder --output",
        group=_FILES,
    )
    top_k: int | None = option(
        "write only this number of likeliest classes; by default a column per class", group=_FILES, low=1, high=10**6
    )
    output: str | None = option("file of the predictions, by default standard output; or folder of masks", group=_FILES)
    features: str | None = option(
        "Parquet file of features, the input of the classifier, with a row per image", group=_FILES
    )
    pictures: str | None = option("folder for images with drawn detections", group=_FILES)
    sheet: str | None = option(
        "PNG or JPEG of images of each class, from the most to the least confident", group=_FILES
    )
