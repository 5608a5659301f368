"""The settings of `paucal segment`."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import MAX_EPOCHS, MAX_SIDE, option
from paucal.settings.shared import FractionSettings, JobSettings, MaskFileSettings, SyncBatchNormSettings


@dataclass(frozen=True)
class MaskSettings(MaskFileSettings):
    """Paths of images and masks, the meaning of the masks' values, and the split."""

    help_group = "data"
    classes: str | None = option(
        "text file with a class name per line, or CSV with the value (NAME,VALUE) or the colour (NAME,R,G,B) of each "
        "class"
    )
    split: str | None = option("split the images as in this split.csv")
    group_by: str | None = option(
        "keep the images of a group in one split: 'duplicates', or a pattern in file names such as 'patient[0-9]+'"
    )


@dataclass(frozen=True)
class HeadSettings:
    """The layers after the backbone."""

    help_group = "model"
    width: int = option("channels within the head; 512 in the papers", low=4, high=4096)
    dropout: float = option("probability of dropping a channel before the classifier", 0.1, low=0, high=0.9)
    auxiliary: float = option(
        "loss weight of an auxiliary head on a middle feature map of the backbone, used only in training; 0 for none",
        0.4,
        low=0,
        high=10,
    )
    auxiliary_width: int = option(
        "channels within the auxiliary head; by default as many as in the head, but at most 256", low=4, high=4096
    )


@dataclass(frozen=True)
class FineTuningSettings:
    """Settings of fine-tuning the backbone."""

    help_group = "fine-tuning"
    backbone_lr: float = option("factor on the learning rate of the backbone", low=0.0001, high=10)
    layer_decay: float | None = option(
        "factor on the learning rate of each layer relative to the layer above it, such as 0.9", low=0.01, high=1
    )
    freeze: Literal["none", "stem", "backbone"] | int = option(
        "frozen part of the backbone: none, stem, backbone (all of it), or a number of stages"
    )
    eval_mode: bool = option("keep the backbone in evaluation mode: fixed running statistics, no dropout", False)


@dataclass(frozen=True)
class SegmentScheduleSettings:
    """The optimizer, and the length of the training."""

    time: str | None = option(
        "plan the run to end after this time, such as 15m, 2h or 1d, instead of --epochs; by default 15 minutes, or 30 "
        "minutes on a GPU",
        chosen=True,
    )
    crops: int = option("random crops per image and epoch", low=1, high=10_000)
    schedule: Literal["cosine", "linear"] = option(
        "how the learning rate falls after the warm-up; linear in the papers", "cosine"
    )
    weight_decay: float = option("weight decay of AdamW", 0.01, low=0)
    clip: float = option("L2 norm to which gradients are clipped; 0 for no clipping", 5.0, low=0)
    average: float = option("decay of the moving average of the weights; 0 for none", 0.0, low=0, high=0.999999)
    freeze_epochs: int = option(
        "epochs at the beginning in which the backbone is frozen",
        0,
        group="fine-tuning",
        low=0,
        high=MAX_EPOCHS,
    )


@dataclass(frozen=True)
class CropSettings:
    """Scaling and augmentation of training crops."""

    help_group = "augmentation"
    resize_to: list[int] | None = option(
        "maximum shorter and longer side in pixels, to which images are resized before --scale and --scales; by "
        "default, images keep their size",
        low=8,
        high=MAX_SIDE,
    )
    scale: list[float] = option("minimum and maximum factor on an image's sides before it is cropped")
    vflip: float = option("probability of a vertical flip", 0.0, low=0, high=1)
    colour: float | Literal["photometric"] = option(
        "strength of changes to brightness, contrast and saturation, such as 0.2, or 0 for none; photometric for the "
        "papers' changes, each with probability 0.5",
        low=0,
        high=1,
    )


@dataclass(frozen=True)
class InferenceSettings:
    """Inference on whole images after the training."""

    help_group = "test"
    test_mode: Literal["windows", "whole"] = option(
        "run the network on windows of the size of the crops, or on whole images", "windows"
    )
    overlap: float = option("overlap of consecutive windows, as a fraction of the window size", 0.33, low=0, high=0.9)
    scales: list[float] | None = option(
        "factors on an image's sides over which predictions are averaged, such as 0.75 1 1.25; by default 1"
    )
    mirror: bool = option("average predictions over an image and its mirror image", False)

    @property
    def test_scales(self) -> tuple[float, ...]:
        """The factors on an image's sides over which predictions are averaged."""
        return tuple(self.scales or (1.0,))


@dataclass(frozen=True)
class SegmentSettings(
    MaskSettings,
    FineTuningSettings,
    HeadSettings,
    SegmentScheduleSettings,
    CropSettings,
    InferenceSettings,
    SyncBatchNormSettings,
    FractionSettings,
    JobSettings,
):
    """Every setting of `paucal segment`, on the command line and in `paucal.segment`."""

    data: str | None = option(  # pyright: ignore[reportIncompatibleVariableOverride] (--images may take its place)
        "folder that contains a folder of images and a folder of masks with the same file names (images/ and masks/, "
        "image/ and label/, ...), or both within train/, val/ and test/",
        group="data",
    )
    img_size: list[int] = option(
        "side in pixels, or height and width, of the crops and windows that the network sees", group="model"
    )
    init: str | None = option(
        "initial weights of the backbone: a run folder, a weights file (.safetensors, .pth), 'timm' (the weights that "
        "timm publishes), 'none' or 'auto' (pretrained weights, which are downloaded if this machine has "
        "none); by default auto",
        group="fine-tuning",
    )
