"""The settings of `paucal predict`: how it classifies, and what it writes."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.groups import FORWARD_PRECISION, ForwardPrecision
from paucal.settings.options import option
from paucal.verbs.convert.settings import Form

_GROUP = "prediction"


@dataclass(frozen=True)
class PredictSettings:
    """Every setting of `paucal predict`; the command line and `paucal.predict` share it."""

    batch_size: int | None = option("images per forward pass", group=_GROUP, low=1, high=1 << 20, chosen=True)
    device: str = option("cpu, cuda or mps", "cpu", group=_GROUP)
    precision: ForwardPrecision | None = option(
        f"{FORWARD_PRECISION}; of videos and watched folders bfloat16 only if asked", group=_GROUP, chosen=True
    )
    mirror: bool = option(
        "average the answers for an image and its mirror image; takes twice the time", False, group=_GROUP
    )
    scales: list[float] | None = option(
        "of a model of pixels: sizes of the image over which answers are averaged, such as 0.75 1 1.25; by default its "
        "own",
        group=_GROUP,
    )
    on_bad_image: Literal["refuse", "skip"] = option("unreadable images", "refuse", group=_GROUP)


_MOVING = "videos, cameras and folders that fill"


@dataclass(frozen=True)
class MovingSettings:
    """What `paucal predict` does with sources that move."""

    every: str = option("of videos and cameras: time between two frames, such as 0.5s, or 'frame'", "1s", group=_MOVING)
    watch: str | None = option("folder to watch: each new picture is answered once, when it is whole", group=_MOVING)
    idle: str | None = option("of --watch: end after so long without a new picture; by default never", group=_MOVING)
    annotated: str | None = option("of a video: .mp4 copy with the answers drawn in; needs --output", group=_MOVING)


_FILES = "what is written"


@dataclass(frozen=True)
class AnswerSettings:
    """What `paucal predict` writes; the Python functions return it as values."""

    format: Literal["csv", "json"] | None = option(
        "form of the answers; of a detector json is COCO's; by default what --output ends in, else csv", group=_FILES
    )
    to: Form | None = option(
        "write the answers as labels, with copies of the images, in this layout of paucal convert, into the folder "
        "--output",
        group=_FILES,
    )
    top_k: int | None = option(
        "write only so many classes, the likeliest first; by default each has a column", group=_FILES, low=1, high=10**6
    )
    output: str | None = option("file of the answers; by default standard output; folder of masks", group=_FILES)
    features: str | None = option(
        "Parquet file of what the classifier is given of each image, one vector a row", group=_FILES
    )
    pictures: str | None = option("folder for images with what a detector has found drawn in", group=_FILES)
    sheet: str | None = option("PNG or JPEG of images of each class, from the surest to the least sure", group=_FILES)
