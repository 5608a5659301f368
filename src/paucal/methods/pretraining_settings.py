"""The settings of `paucal pretrain`: settings of all runs, and settings of each method."""

from dataclasses import dataclass
from typing import Literal

from paucal.methods.names import PRETRAINING_METHODS, describe_names
from paucal.settings.options import MAX_EPOCHS, MAX_IMAGES, MAX_SIDE, option
from paucal.settings.shared import DATA_HELP, HIGHEST_ALPHA, LOWEST_ALPHA, JobSettings, ScheduleSettings, ViewSettings


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


@dataclass(frozen=True)
class SelfDistillationSettings:
    """Options of EsViT's self-distillation (Li et al., ICLR 2022)."""

    help_group = "method"
    esvit_preset: Literal["paper", "reference"] = option(
        "version of EsViT: the paper's, or the published program's, which also applies weight decay to tables of "
        "relative positions and to tokens",
        "paper",
    )
    tasks: Literal["view", "view+region"] = option("compare crops (view), or crops and regions of crops (view+region)")
    region_after: int | None = option(
        "number of epochs with only the view task before the region task starts; the optimizer state is kept",
        low=1,
        high=MAX_EPOCHS,
    )
    similarity: Literal["cosine", "dot"] = option(
        "similarity by which a region of one crop is matched with a region of another crop", "cosine"
    )
    out_dim: int = option("prototypes of each head", low=2, high=1 << 20)
    hidden_dim: int = option("width of the heads' MLP", low=1, high=1 << 16)
    bottleneck_dim: int = option("width of the vectors that are compared with prototypes", low=1, high=1 << 16)
    head_layers: int = option("linear layers of the heads' MLP", 3, low=1, high=16)
    head_norm: Literal["none", "batch"] = option("normalisation in the heads' MLP")
    learn_lengths: bool = option("also learn the lengths of prototypes (less stable)", False)
    freeze_last_layer: int = option("epochs at the beginning in which prototypes are frozen", 1, low=0, high=MAX_EPOCHS)
    student_temperature: float = option("temperature of the student", 0.1, above=0)
    teacher_temperature: float = option("temperature of the teacher", above=0)
    warmup_teacher_temperature: float = option("temperature of the teacher at the beginning", 0.04, above=0)
    warmup_teacher_epochs: int = option("epochs from the first to the last teacher temperature", low=0, high=MAX_EPOCHS)
    momentum: float = option(
        "momentum of the teacher at the beginning: weight of the old teacher in an update", low=0, high=1
    )
    centre_momentum: float = option("momentum of the centre: weight of the old centre in an update", 0.9, low=0, high=1)
    teacher_norm: Literal["batch", "running"] = option(
        "statistics in the teacher's batch norms: of the batch, as published, or running statistics", "batch"
    )
    mixup: float = option(
        "alpha of mixup between the student's crops (view task only); 0 for none",
        0.0,
        low=LOWEST_ALPHA,
        high=HIGHEST_ALPHA,
        or_zero=True,
    )
    weight_decay_end: float = option("weight decay at the end of training", 0.4, group="training", low=0)


@dataclass(frozen=True)
class ContinuedSettings:
    """Frozen layers in pre-training that continues from pretrained weights."""

    freeze: int = option(
        "number of first stages that are frozen, together with the stem and all running statistics; 0 for none",
        group="fine-tuning",
        low=0,
        high=64,
    )


@dataclass(frozen=True)
class ProjectorSettings(ContinuedSettings):
    """The projector of methods that compare embeddings."""

    projection_hidden: int = option("width of the projector's hidden layers", group="method", low=1, high=1 << 16)


@dataclass(frozen=True)
class LeJepaSettings(ProjectorSettings):
    """Options of LeJEPA (Balestriero and LeCun 2025)."""

    help_group = "method"
    sigreg_weight: float = option(
        "weight of the term that keeps embeddings normally distributed, as a fraction of the loss", 0.05, low=0, high=1
    )
    sigreg_directions: int = option("random directions along which the features are tested", 256, low=1, high=1 << 16)
    projection_dim: int = option("width of the embeddings that are compared", 16, low=1, high=1 << 16)


@dataclass(frozen=True)
class VisRegSettings(ProjectorSettings):
    """Options of VISReg (arXiv:2606.02572)."""

    help_group = "method"
    visreg_weight: float = option(
        "weight of the term that keeps embeddings normally distributed, as a fraction of the loss", 0.02, low=0, high=1
    )
    visreg_directions: int = option("random directions along which the embeddings are tested", 256, low=1, high=1 << 16)
    visreg_dim: int = option("width of the embeddings that are compared", 512, low=1, high=1 << 16)


@dataclass(frozen=True)
class DietSettings(ContinuedSettings):
    """Options of DIET (arXiv:2302.10260) and DIET-CP (arXiv:2509.06990)."""

    help_group = "method"
    diet_smoothing: float = option("label smoothing of the images' own classes", 0.8, low=0, high=0.999)
    diet_classes: int = option(
        "maximum number of classes; if there are more images, several images share a class", low=2, high=1 << 20
    )


@dataclass(frozen=True)
class MethodSettings(DietSettings, VisRegSettings, LeJepaSettings, SelfDistillationSettings):
    """The pre-training method, and the options of all methods."""

    method: str = option(
        f"pre-training method: {describe_names(PRETRAINING_METHODS)}", "self-distillation", group="method"
    )


@dataclass(frozen=True)
class PretrainSettings(  # type: ignore[reportIncompatibleVariableOverride] (a number, never "auto")
    MonitorSettings, PretrainScheduleSettings, MethodSettings, CropSettings, JobSettings
):
    """Every setting of `paucal pretrain`, on the command line and in `paucal.pretrain`."""

    data: str = option(
        f"{DATA_HELP}; folders are searched to any depth, and labels are not used",
        "digits",
        group="data",
    )
    img_size: list[int] = option("side of the global crops in pixels, or height and width", group="crops")
