"""The settings of `paucal detect`, and the options of the detector that they describe."""

from dataclasses import dataclass, fields
from typing import Literal

from paucal.settings.groups import JobSettings
from paucal.settings.options import EarlierName, option
from paucal.settings.parts import CutSettings, JointNormSettings
from paucal.tasks.detection.network.options import (
    HEADS,
    MAX_LAYERS,
    AnchorSides,
    BoxLoss,
    CascadeAverage,
    CascadeBoxes,
    DetectorOptions,
    Maps,
    MaskNorm,
    Matching,
    Pooling,
    ProposalLoss,
    PyramidNorm,
)


@dataclass(frozen=True)
class DetectorSettings:
    """Settings of the detector around the backbone."""

    cascade: bool = option("three heads in a row (Cascade R-CNN)", False, group="detector")
    masks: Literal["auto", "on", "off"] = option(
        "also predict the pixels of each object (Mask R-CNN), which needs outlines; off ignores outlines",
        group="detector",
    )
    finest: int = option("stride of the finest map in pixels: 4, 8, 16 or 32", group="detector", low=4, high=32)
    anchor: int = option("side of the anchors over the stride of their map", group="detector", low=1, high=64)
    pyramid_channels: int = option("channels of the feature pyramid", group="detector", low=8, high=1024)
    head: str = option(
        f"layers that classify a region: {', '.join(f'{name} ({head.words})' for name, head in HEADS.items())}",
        "2fc",
        group="detector",
    )
    head_dim: int = option("width of the layers that classify a region", group="detector", low=8, high=4096)
    regions: int = option("regions per image that the heads learn from", group="detector", low=8, high=4096)
    proposals: int = option("regions proposed in training, per image", group="detector", low=16, high=10_000)
    candidates: int | None = option(
        "regions of each map that are compared before proposals are chosen, in training; by default as many as "
        "proposals",
        group="detector",
        low=16,
        high=10_000,
    )
    pyramid_norm: PyramidNorm = option("norm after each convolution of the feature pyramid", "group", group="detector")
    proposal_layers: int = option(
        "convolutions between a map and its proposals", 1, group="detector", low=1, high=MAX_LAYERS
    )
    maps: Maps = option(
        "maps of the backbone: one of each stride, or the two of torchvision's MobileNet detectors",
        "strides",
        group="detector",
    )
    anchor_sides: AnchorSides = option(
        "sides of the anchors of a cell: one that grows with the stride, or five from 32 to 512 pixels on every map",
        "one",
        group="detector",
    )
    mask_norm: MaskNorm = option("norm after each convolution of the mask layers", "none", group="detector")
    pooling: Pooling = option(
        "how a region is read from a map: sampled at 2x2 points of each cell, or exactly aligned at as many points as "
        "it covers",
        "sampled",
        group="detector",
    )
    cascade_boxes: CascadeBoxes = option(
        "whether a head of the cascade corrects a box once or for each class", "shared", group="detector"
    )
    cascade_average: CascadeAverage = option(
        "quantity that a cascade averages over its heads", "probabilities", group="detector"
    )


@dataclass(frozen=True)
class LossSettings:
    """Settings of what a detector learns from an image."""

    box_loss: BoxLoss = option("loss of the boxes of regions; giou counts ten times", "smooth-l1")
    proposal_loss: ProposalLoss = option("loss of the boxes of proposals", "smooth-l1")
    matching: Matching = option(
        "which boxes learn an object in addition to those that overlap it enough: torchvision's anchors, the anchors "
        "that overlap it most from 0.3 on, or also the regions that overlap it most",
        "torchvision",
    )
    empty_images: Literal["keep", "drop"] = option(
        "training images without an object: keep them as negatives, or leave them out", "keep", group="data"
    )
    least_box: float = option(
        "shortest side of a box that is learned, in pixels of the annotated image", 0.0, group="data", low=0, high=1000
    )


@dataclass(frozen=True)
class FineTuningSettings:
    """Settings of fine-tuning a backbone with pretrained weights."""

    freeze: Literal["none", "stem", "backbone"] | int = option(
        "frozen part of the backbone: none, stem, backbone (all of it), or a number of stages with the stem",
        group="fine-tuning",
        low=0,
        high=64,
        earlier=EarlierName("freeze_stages", int, {0: "none"}),
    )
    eval_mode: bool = option(
        "keep the backbone in evaluation mode: fixed running statistics, no dropout",
        group="fine-tuning",
        earlier=EarlierName("norms", Literal["learn", "still"], {"learn": False, "still": True}),
    )
    backbone_lr: float = option(
        "factor on the learning rate of the backbone",
        group="fine-tuning",
        low=0,
        high=10,
        earlier=EarlierName("backbone_rate", float),
    )


@dataclass(frozen=True)
class ScheduleSettings:
    """The length of the training and the optimizer."""

    time: str | None = option(
        "train and evaluate within this time, such as 20m or 2h; the length is planned for it", chosen=True
    )
    steps: int | None = option("number of optimizer steps, instead of --epochs", low=1, high=10**8)
    heads_steps: int | None = option(
        "optimizer steps at the start that train only the layers after the backbone and give the first detector "
        "of the run; 0 for none; planned for --time by default",
        low=0,
        high=10**8,
    )
    judge_every: int | None = option(
        "optimizer steps between two evaluations on the validation images", low=1, high=10**8
    )
    milestones: list[int] | None = option(
        "passes over the training images after which the learning rate falls to a tenth, such as 8 11; by default it "
        "follows a half cosine"
    )
    weight_decay: float = option("weight decay of AdamW", 0.05, low=0, high=1)
    clip: float = option("L2 norm to which gradients are clipped; 0 for no clipping", 5.0, low=0)
    average: float = option(
        "ceiling of the decay of the moving average of the weights; 0 for none", low=0, high=0.99999
    )


@dataclass(frozen=True)
class DetectSettings(
    ScheduleSettings, FineTuningSettings, LossSettings, DetectorSettings, JointNormSettings, CutSettings, JobSettings
):
    """Every setting of `paucal detect`; the command line and `paucal.detect` share it."""

    data: str = option(
        "images with boxes: a folder, a zip or tar of one, or an annotation file (COCO, Pascal VOC, YOLO, LabelMe, "
        "CVAT, a CSV of boxes)",
        "",
        group="data",
    )
    drop_path: float | None = option(  # pyright: ignore[reportIncompatibleVariableOverride] (the backbone's own)
        "stochastic depth rate", group="model", low=0, high=0.95
    )
    img_size: list[int] = option(
        "largest pixels of an image's longer side, or of its shorter and its longer side", group="model"
    )
    jitter: Literal["none", "light", "multiscale", "cropped", "large"] = option(
        "how sizes and colours vary: light by a fifth, multiscale sizes from 0.6 to 1 as published, cropped the same "
        "after half of the images were cropped, large from half to double (large-scale jitter)",
        group="augmentation",
    )
    copy_paste: float = option(
        "chance that objects of another training image are pasted into an image, by their masks",
        0.0,
        group="augmentation",
        low=0,
        high=1,
    )


def detector_name(settings: DetectSettings) -> str:
    """Return the name of the detector in the papers.

    Example:
        >>> detector_name(DetectSettings(cascade=True, masks="on"))
        'Cascade Mask R-CNN'
    """
    if settings.masks == "on":
        return "Cascade Mask R-CNN" if settings.cascade else "Mask R-CNN"
    return "Cascade R-CNN" if settings.cascade else "Faster R-CNN"


def detector_options(settings: DetectSettings) -> DetectorOptions:
    """Return the options of the detector that settings describe; limits on its predictions keep their defaults."""
    names = {item.name for item in fields(DetectorOptions)} & vars(settings).keys()
    values = {name: getattr(settings, name) for name in names}
    values |= {"channels": settings.pyramid_channels, "masks": settings.masks == "on"}
    return DetectorOptions(**{**values, "candidates": settings.candidates or 0})
