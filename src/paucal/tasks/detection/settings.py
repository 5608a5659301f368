"""The settings of `paucal detect`, and their conversion to the options of a detector."""

from dataclasses import dataclass, fields
from typing import Literal

from paucal.settings.options import EarlierName, option
from paucal.settings.shared import FractionSettings, JobSettings, SyncBatchNormSettings
from paucal.tasks.detection.network import options
from paucal.tasks.detection.network.options import HEADS, MAX_PROPOSAL_LAYERS, DetectorOptions

# Names of the layouts in `paucal.data.boxes.opening.LAYOUTS`; a copy, since the help must not import the readers of
# these layouts.
BOX_LAYOUTS = "COCO, Pascal VOC, YOLO, LabelMe, Label Studio, CVAT, or a CSV of boxes"


@dataclass(frozen=True)
class DetectorSettings:
    """Settings of the detector's layers after the backbone."""

    help_group = "detector"
    cascade: bool = option("three heads in sequence (Cascade R-CNN)", False)
    masks: Literal["auto", "on", "off"] = option(
        "also predict the pixels of each object (Mask R-CNN), which needs outlines; off ignores outlines"
    )
    finest: int = option("stride of the finest feature map in pixels: 4, 8, 16 or 32", low=4, high=32)
    anchor: int = option("side of the anchors, in strides of their feature map", low=1, high=64)
    pyramid_channels: int = option("channels of the feature pyramid", low=8, high=1024)
    head: str = option(
        f"layers that classify a region: {', '.join(f'{name} ({head.words})' for name, head in HEADS.items())}", "2fc"
    )
    head_dim: int = option("width of the layers that classify a region", low=8, high=4096)
    regions: int = option("sampled regions per image that train the heads", low=8, high=4096)
    proposals: int = option("proposals per image in training", low=16, high=10_000)
    candidates: int | None = option(
        "boxes per feature map before non-maximum suppression, in training; by default as many as --proposals",
        low=16,
        high=10_000,
    )
    pyramid_norm: options.PyramidNorm = option("norm after each convolution of the feature pyramid", "group")
    proposal_layers: int = option("convolutions of the proposal network", 1, low=1, high=MAX_PROPOSAL_LAYERS)
    maps: options.Maps = option(
        "feature maps of the backbone: one per stride, or the two that torchvision's MobileNet detectors use", "strides"
    )
    anchor_sides: options.AnchorSides = option(
        "anchor sides per position: one, proportional to the stride, or five from 32 to 512 pixels on every map", "one"
    )
    mask_norm: options.MaskNorm = option("norm after each convolution of the mask layers", "none")
    pooling: options.Pooling = option(
        "RoIAlign of a region: sampled at 2x2 points per bin, or exactly aligned with more points for larger bins",
        "sampled",
    )
    cascade_boxes: options.CascadeBoxes = option(
        "whether a head of the cascade corrects a box once or for each class", "shared"
    )
    cascade_average: options.CascadeAverage = option(
        "quantity that a cascade averages over its heads to classify a region", "probabilities"
    )


@dataclass(frozen=True)
class LossSettings:
    """Settings of the losses, and of the boxes that enter the losses."""

    box_loss: options.BoxLoss = option("box loss of the heads; giou has weight 10", "smooth-l1")
    proposal_loss: options.ProposalLoss = option("box loss of the proposal network", "smooth-l1")
    matching: options.Matching = option(
        "boxes assigned to an object in addition to those with enough IoU: torchvision (as in torchvision), anchors "
        "(the anchor of highest IoU, if at least 0.3), regions (also the proposal of highest IoU)",
        "torchvision",
    )
    empty_images: Literal["keep", "drop"] = option(
        "whether to keep training images without an object as negatives, or to drop these images", "keep", group="data"
    )
    least_box: float = option(
        "minimum side of a training box, in pixels of the annotated image", 0.0, group="data", low=0, high=1000
    )


@dataclass(frozen=True)
class FineTuningSettings:
    """Settings of fine-tuning a backbone with pretrained weights."""

    help_group = "fine-tuning"
    freeze: Literal["none", "stem", "backbone"] | int = option(
        "frozen layers: none, stem, backbone (the whole backbone), or the number of stages frozen with the stem",
        low=0,
        high=64,
        earlier=EarlierName("freeze_stages", int, {0: "none"}),
    )
    eval_mode: bool = option(
        "keep the backbone in evaluation mode: fixed running statistics, no dropout",
        earlier=EarlierName("norms", Literal["learn", "still"], {"learn": False, "still": True}),
    )
    backbone_lr: float = option(
        "factor on the learning rate of the backbone", low=0, high=10, earlier=EarlierName("backbone_rate", float)
    )


@dataclass(frozen=True)
class ScheduleSettings:
    """The optimizer, and the length of the training."""

    time: str | None = option(
        "train and evaluate within this time, such as 20m or 2h; the length is planned for it", chosen=True
    )
    steps: int | None = option("number of optimizer steps, instead of --epochs", low=1, high=10**8)
    heads_steps: int | None = option(
        "optimizer steps at the start of the run that train a first detector on the frozen backbone; 0 skips this "
        "stage; by default chosen for --time",
        low=0,
        high=10**8,
    )
    judge_every: int | None = option(
        "optimizer steps between two evaluations on the validation images", low=1, high=10**8
    )
    milestones: list[int] | None = option(
        "epochs after which the learning rate falls to a tenth, such as 8 11; the default is a half-cosine schedule"
    )
    weight_decay: float = option("weight decay of AdamW", 0.05, low=0, high=1)
    clip: float = option("L2 norm to which gradients are clipped; 0 disables clipping", 5.0, low=0)
    average: float = option(
        "maximum decay of the moving average of the weights; 0 disables the average", low=0, high=0.99999
    )


@dataclass(frozen=True)
class DetectSettings(
    ScheduleSettings,
    FineTuningSettings,
    LossSettings,
    DetectorSettings,
    SyncBatchNormSettings,
    FractionSettings,
    JobSettings,
):
    """All settings of `paucal detect`, for the command line and for `paucal.detect`."""

    data: str = option(
        f"images with boxes: a folder, a zip or tar archive of a folder, or an annotation file ({BOX_LAYOUTS})",
        "",
        group="data",
    )
    drop_path: float | None = option(  # pyright: ignore[reportIncompatibleVariableOverride] (the backbone's own)
        "stochastic depth rate", group="model", low=0, high=0.95
    )
    init: str | None = option(
        "initial weights of the backbone: a run folder, a weights file (.safetensors, .pth), 'timm' (the weights that "
        "timm publishes) or 'none'; or 'coco' for all layers of a detector that torchvision trained on COCO; by "
        "default, pretrained weights, which are downloaded if this machine has none",
        group="fine-tuning",
    )
    img_size: list[int] = option(
        "maximum longer side of an image in pixels, or maximum shorter and longer side", group="model"
    )
    jitter: Literal["none", "light", "multiscale", "cropped", "large"] = option(
        "random sizes and colours: light (up to a fifth), multiscale (sizes from 0.6 to 1, as published), cropped "
        "(multiscale, and half of the images cropped), large (large-scale jitter: sizes from half to double)",
        group="augmentation",
    )
    copy_paste: float = option(
        "probability of pasting objects of another training image, cut out by their masks, into an image",
        0.0,
        group="augmentation",
        low=0,
        high=1,
    )


def detector_options(settings: DetectSettings) -> DetectorOptions:
    """Return the detector options that settings describe; limits on the predictions keep their defaults."""
    names = {item.name for item in fields(DetectorOptions)} & vars(settings).keys()
    values = {name: getattr(settings, name) for name in names}
    values |= {"channels": settings.pyramid_channels, "masks": settings.masks == "on"}
    if settings.candidates is None:
        del values["candidates"]  # the default of the options is as many as `proposals`
    return DetectorOptions(**values)
