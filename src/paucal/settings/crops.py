"""The settings of pre-training alone: crops, optimizer and monitoring."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.groups import ScheduleSettings, ViewSettings
from paucal.settings.options import MAX_SIDE, MOST, option


@dataclass(frozen=True)
class CropSettings(ViewSettings):
    """The crops of an image that are compared, and their augmentation."""

    global_crops: int = option("global crops of an image", 2, group="crops", low=1, high=64)
    global_scale: list[float] = option("share of an image's area that a global crop covers", group="crops")
    local_crops: list[int] = option(
        "local crops of an image, a number for each of their sizes", group="crops", low=0, high=64
    )
    local_size: list[int] = option("sides of the local crops in pixels", group="crops", low=4, high=MAX_SIDE)
    local_scale: list[float] = option("share of an image's area that a local crop covers", group="crops")
    resize: Literal["crop", "letterbox", "squash"] = option(
        "what is done to an image of another shape before crops are cut from it: nothing, bars of the mean colour, or "
        "stretching; then all of every image is shown where features are read",
        "crop",
        group="crops",
    )
    pipeline: Literal["dino", "alike", "deit"] = option(
        "how crops are changed: each kind in a way of its own (dino), all in one way (alike), or as in timm's training "
        "(deit)",
        group="crops",
    )
    blur: list[float] = option("range of the blur's radius in pixels", group="crops")


@dataclass(frozen=True)
class PretrainScheduleSettings(ScheduleSettings):
    """The optimizer of pre-training."""

    batch_size: int = option("images per forward pass and device", low=1, high=1 << 20)
    optimizer: Literal["adamw", "sgd", "lars"] = option(
        "what makes the steps; sgd and lars (momentum 0.9) need a rate of their own, --lr", "adamw"
    )
    weight_decay: float = option("weight decay", low=0)
    clip: float = option("L2 norm to which gradients are clipped; 0 for no clipping", low=0)


@dataclass(frozen=True)
class WatchSettings:
    """Monitoring of the run, and the reaction to collapse."""

    monitor: str | None = option(
        "labelled images on which nearest neighbours are tried after each epoch; nothing is trained on them",
        group="watching",
    )
    monitor_images: int = option("images of the monitor to use, at most", 5000, group="watching", low=20, high=MOST)
    on_collapse: Literal["warn", "stop", "rollback"] = option(
        "what to do when the networks collapse: say so, stop, or return to the last healthy state and continue with "
        "settings that counteract the collapse",
        "warn",
        group="watching",
    )
