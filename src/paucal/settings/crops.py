"""Settings that are only for pre-training: crops, optimizer, and monitoring of the run."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import MAX_IMAGES, MAX_SIDE, option
from paucal.settings.shared import ScheduleSettings, ViewSettings


@dataclass(frozen=True)
class CropSettings(ViewSettings):
    """The crops of an image that pre-training compares, and their augmentation."""

    help_group = "crops"
    global_crops: int = option("global crops per image", 2, low=1, high=64)
    global_scale: list[float] = option("range of the fraction of an image's area that a global crop covers")
    local_crops: list[int] = option(
        "local crops per image, with one number for each side in --local-size", low=0, high=64
    )
    local_size: list[int] = option(
        "side of the local crops in pixels; several sides for crops of several sizes", low=4, high=MAX_SIDE
    )
    local_scale: list[float] = option("range of the fraction of an image's area that a local crop covers")
    resize: Literal["crop", "letterbox", "squash"] = option(
        "treatment, before cropping, of images whose shape differs from the network's input: crop (none), letterbox "
        "(padding with the mean colour) or squash (stretching); with the last two, features are computed from the "
        "whole image",
        "crop",
    )
    pipeline: Literal["dino", "alike", "deit"] = option(
        "augmentation of crops: dino (as in DINO, different for each kind of crop), alike (the same for all crops) or "
        "deit (as in timm's training)"
    )
    blur: list[float] = option("smallest and largest radius of the blur in pixels")


@dataclass(frozen=True)
class PretrainScheduleSettings(ScheduleSettings):
    """The optimizer of pre-training."""

    batch_size: int = option("images per forward pass and device", low=1, high=1 << 20)
    optimizer: Literal["adamw", "sgd", "lars"] = option(
        "optimizer; sgd and lars (with momentum 0.9) need a learning rate given by --lr", "adamw"
    )
    weight_decay: float = option("weight decay of the optimizer", low=0)
    clip: float = option("L2 norm to which gradients are clipped; 0 for no clipping", low=0)


@dataclass(frozen=True)
class MonitorSettings:
    """Monitoring of the features during the run, and the reaction if the features collapse."""

    help_group = "watching"
    monitor: str | None = option(
        "labelled images for a nearest-neighbour evaluation after each epoch; these images are not used for training"
    )
    monitor_images: int = option("largest number of images used for --monitor", 5000, low=20, high=MAX_IMAGES)
    on_collapse: Literal["warn", "stop", "rollback"] = option(
        "reaction to collapse: warn, stop, or roll back to the last checkpoint before the collapse and continue with "
        "settings that counteract collapse",
        "warn",
    )
