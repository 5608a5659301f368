"""The settings of `paucal train`: settings of all runs, and settings of each method."""

from dataclasses import dataclass
from typing import Literal

from paucal.methods.names import EXTRA_LOSSES, TRAINING_METHODS, describe_names
from paucal.settings.options import MAX_EPOCHS, MAX_IMAGES, MAX_SIDE, option
from paucal.settings.shared import (
    HIGHEST_ALPHA,
    LOWEST_ALPHA,
    FractionSettings,
    JobSettings,
    LabelledDataSettings,
    ScheduleSettings,
    SyncBatchNormSettings,
    ViewSettings,
)

# Method of a run that chooses pretrained weights, if the user gave no method. For these weights, the default method has
# shown no gain.
TUNING_METHOD = "supervised"


@dataclass(frozen=True)
class SplitSettings(FractionSettings):
    """The training images to use, and the split into training, validation and test images."""

    help_group = "data"
    fraction: float | None = option("use only this fraction of the training images, stratified by class", above=0)
    few_labels: int | None = option("number of training images per class to use", low=1, high=MAX_IMAGES)
    group_by: str | None = option(
        "keep the images of a group in the same split; groups are given by a column of the table, by 'duplicates', or "
        "by the matches of a pattern in the file names, such as 'patient[0-9]+'"
    )
    split: str | None = option("use the splits in this table (split.csv of a run)")
    folds: int | None = option("cross-validate with this number of folds", low=2, high=100)
    fold: str | None = option("train with one fold as the test set, such as 2/5")


@dataclass(frozen=True)
class BalanceSettings:
    """Balancing of classes that have different numbers of images."""

    class_weights: Literal["none", "auto"] = option(
        "weights of the classes in the loss; auto gives all classes the same total weight", "none"
    )
    sampling: Literal["shuffled", "balanced"] = option(
        "training images of an epoch: all images in random order (shuffled), or the same number of images from every "
        "class (balanced)",
        "shuffled",
    )


@dataclass(frozen=True)
class FineTuningSettings:
    """Fine-tuning of pretrained backbones, and random initialisation."""

    help_group = "fine-tuning"
    attention_init: Literal["model", "mimetic"] = option(
        "random initialisation of attention weights: the model's own, or similar to trained transformers (mimetic)",
        "model",
        group="model",
    )
    init_head: Literal["auto", "keep", "fresh"] = option(
        "whether to keep the classifier of the initial weights: auto (if the classes match), keep (always) or fresh "
        "(never)",
        "auto",
    )
    layer_decay: float | None = option(
        "factor by which the learning rate decreases from each layer to the layer below, such as 0.75", low=0.01, high=1
    )
    freeze: Literal["stem", "backbone", "weights"] | int | None = option(
        "part of the model that is not trained: stem, backbone (all but the classifier), weights (all but norms, "
        "biases and the classifier), or a number of first stages"
    )
    lora_rank: int | None = option(
        "tune a transformer through low-rank adapters (LoRA) of this rank, such as 8, on its attention layers; use "
        "with at least 16 images per class; other weights are frozen, and the architecture does not change",
        low=1,
        high=1024,
    )
    frozen_views: int = option(
        "augmented views per image that pass through the frozen stages once, before training; training uses the stored "
        "activations of these views in turn; 0 for new views in every epoch",
        0,
        low=0,
        high=1000,
    )
    freeze_epochs: int = option(
        "number of epochs at the beginning in which only the classifier is trained", 0, low=0, high=MAX_EPOCHS
    )
    eval_mode: bool = option("keep the backbone in evaluation mode (fixed running statistics, no dropout)", False)


@dataclass(frozen=True)
class AugmentationSettings(ViewSettings):
    """Augmentation of training images."""

    help_group = "augmentation"
    repeats: int = option(
        "number of times that an epoch uses each image in succession, each time with a new augmentation",
        1,
        low=1,
        high=1000,
    )
    resize: Literal["crop", "letterbox", "squash"] = option(
        "treatment of images whose shape differs from the network's input: crop, letterbox (padding with the mean "
        "colour) or squash (stretching)",
        "crop",
    )
    crop: Literal["random-resized", "padded", "none"] = option("training crop")
    crop_scale: float | None = option(
        "smallest fraction of the image's area that a random crop covers", low=0.01, high=1, chosen=True
    )
    rand_augment: str = option("RandAugment in timm's notation, or 'none'")
    erase: float = option("probability of random erasing", low=0, high=1)
    mixup: float = option("alpha of mixup; 0 for none", low=LOWEST_ALPHA, high=HIGHEST_ALPHA, or_zero=True)
    cutmix: float = option("alpha of CutMix; 0 for none", low=LOWEST_ALPHA, high=HIGHEST_ALPHA, or_zero=True)


@dataclass(frozen=True)
class TrainScheduleSettings(ScheduleSettings):
    """The length and the optimizer of supervised training."""

    epochs: int | None = option(
        "passes over the training images; 0 to fit only a linear classifier to pretrained features",
        low=0,
        high=MAX_EPOCHS,
        chosen=True,
    )
    time: str | None = option(
        "plan the run to end after this time, such as 15m, 2h or 1d, in place of --epochs; by default 15 minutes, or "
        "30 minutes on a GPU",
        chosen=True,
    )
    schedule_epochs: int = option(
        "length of the cosine schedule in epochs; by default all epochs", low=1, high=MAX_EPOCHS
    )
    batch_size: int | Literal["auto"] = option(
        "images per forward pass and device; 'auto' halves the usual number until a batch fits in memory, and "
        "accumulates gradients",
        low=1,
        high=1 << 20,
    )
    warmup_lr: float | None = option(
        "learning rate at the beginning of the warm-up; by default a thousandth of the peak learning rate", low=0
    )
    schedule: Literal["step", "lagging"] = option(
        "when the learning rate changes: after every step, or after every epoch with a delay of one epoch (lagging), "
        "as in DeiT's code",
        "step",
    )
    weight_decay: float = option("weight decay of AdamW", 0.05, low=0)
    clip: float = option("L2 norm to which gradients are clipped; 0 for no clipping", 5.0, low=0)
    average: float = option("decay of the moving average of the weights; 0 for none", low=0, high=0.999999)
    soup: int = option(
        "average the weights of up to this many of the best epochs if the average improves the validation score; 0 to "
        "use the best epoch alone",
        low=0,
        high=20,
    )
    calibrate: Literal["temperature", "none"] = option(
        "fit a temperature on the validation images so that confidence matches accuracy; the temperature does not "
        "change the predicted classes",
        "temperature",
    )
    label_smoothing: float = option("label smoothing", 0.1, low=0, high=0.999)


@dataclass(frozen=True)
class DrLocSettings:
    """Options of DrLoc (Liu et al., NeurIPS 2021). `--drloc-preset` or a rule sets flags that are not given.

    The allowed values are copied from `objectives.drloc`, whose import takes seconds; a test checks that the
    two modules agree.
    """

    help_group = "method"
    drloc_preset: Literal["paper", "reference"] = option(
        "version of the DrLoc loss: the paper's formula or the published program's", "paper"
    )
    drloc_mode: Literal["l1", "signed", "ce", "reg"] | None = option("variant of the DrLoc loss")
    drloc_scale: Literal["side", "side_minus_1", "none"] | None = option(
        "l1, signed: divisor of offsets: the grid's side, the largest offset, or none"
    )
    drloc_shift: Literal["side_minus_1", "none"] | None = option(
        "signed: shift of offsets: the largest offset, so that no offset is negative, or none"
    )
    drloc_coordinates: Literal["mean", "sum"] | None = option(
        "l1, signed: mean or sum of the losses of rows and columns"
    )
    drloc_classes: Literal["signed", "paper", "absolute"] | None = option(
        "ce, reg: classes of an axis of k positions: the 2k-1 offsets that occur, the paper's 2k+1, or k distances"
    )
    drloc_extra_layer: Literal["linear", "none"] | None = option(
        "ce, reg: an additional layer before the last layer of the localization MLP"
    )
    drloc_log_of: Literal["sigma", "variance"] | None = option("reg: argument of the logarithm in the variance term")
    drloc_alpha: float | None = option("reg: factor of the variance term", low=0)
    drloc_hidden: int = option("width of the localization MLP", low=1, high=1 << 16)
    # The feature grids that the loss reads, and the pairs of grid positions
    drloc_levels: Literal["last", "stages", "merged", "blocks"] | None = option(
        "feature grids for the DrLoc loss: the last grid, one grid per stage, the grids after Swin's merging layers, "
        "or one grid per block"
    )
    drloc_norm: Literal["after", "before"] | None = option(
        "read the last grid after the backbone's final norm or before it"
    )
    drloc_pool: Literal["none", "paper", "reference"] | int | None = option(
        "pooling of the grid before the DrLoc loss: a rule, or the side to pool to", low=1, high=MAX_SIDE
    )
    drloc_sampling: Literal["random", "permutation"] = option(
        "pairs of grid positions: random pairs, or a random permutation that pairs every position", "random"
    )
    drloc_pairs: int | None = option(
        "number of random pairs of grid positions per image", low=1, high=1 << 16, chosen=True
    )
    drloc_weight: float = option("weight of the DrLoc loss", low=0)
    drloc_schedule: Literal["constant", "ramp"] | None = option(
        "the weight over time: constant, or a ramp that rises from 0 and falls to 0"
    )
    drloc_warmup_epochs: int | None = option("ramp: epochs of the rise", low=0, high=MAX_EPOCHS)
    drloc_horizon_epochs: int | None = option(
        "ramp: epoch at which the weight is 0 again; may be after the end of the run", low=1, high=MAX_EPOCHS
    )


@dataclass(frozen=True)
class LocalitySettings:
    """Options of locality guidance (Li et al., ECCV 2022)."""

    help_group = "method"
    guide: str | None = option("run of a small CNN whose feature maps the blocks imitate with --add locality")
    guide_weight: float = option("weight of the loss of --add locality", low=0)


@dataclass(frozen=True)
class DistillationSettings:
    """Options of distillation (Touvron et al., ICML 2021; Hinton et al., 2015)."""

    help_group = "method"
    teacher: str | None = option("teacher of --add distillation: a run or a timm model with published weights")
    distillation_weight: float | None = option(
        "weight of the loss of --add distillation, relative to 1 for the labels", low=0
    )
    distillation_targets: Literal["class", "probabilities"] = option(
        "what --add distillation learns from the teacher: the most likely class, or the probabilities", "class"
    )


@dataclass(frozen=True)
class TokenLabelingSettings:
    """Options of token labeling (Jiang et al., NeurIPS 2021) and ReLabel."""

    help_group = "method"
    labels: str | None = option("folder of label maps from 'paucal label'")
    token_preset: Literal["paper", "reference"] = option(
        "version of token labeling: the paper's formula or the published program's", "paper"
    )
    token_weight: float | None = option("weight of the token loss", low=0)
    no_mix_token: bool = option("switch off MixToken, which exchanges boxes of tokens between images", False)


@dataclass(frozen=True)
class MethodSettings(DrLocSettings, LocalitySettings, DistillationSettings, TokenLabelingSettings):
    """The training method, the extra losses, and the options of all methods and losses."""

    help_group = "method"
    method: str = option(
        f"training method; {TUNING_METHOD} instead of the default if the run chooses pretrained weights: "
        f"{describe_names(TRAINING_METHODS)}",
        "drloc",
    )
    add: list[str] | None = option(f"extra losses besides the method's own: {describe_names(EXTRA_LOSSES)}")


@dataclass(frozen=True)
class TrainSettings(
    SyncBatchNormSettings,
    AugmentationSettings,
    TrainScheduleSettings,
    MethodSettings,
    FineTuningSettings,
    BalanceSettings,
    SplitSettings,
    LabelledDataSettings,
    JobSettings,
):
    """Every setting of `paucal train`, on the command line and in `paucal.train`."""

    help_group = "data"
    curve: bool = option(
        "measure the accuracy of the first model against images per class, and forecast the accuracy for twice as many "
        "images; always done if there are no validation images",
        False,
    )
    unlabelled: str | None = option(
        "additional images without labels to learn from: a folder to any depth, zip or tar, table, Parquet or a "
        "published set; several places joined by ':'; only used if they improve the cross-validated score"
    )
    target: str | None = option("column of a table with a number for each image, which is predicted instead of a class")
    ordinal: bool = option(
        "with --target: the values are grades, a few consecutive whole numbers; predict a grade, and a probability for "
        "each grade",
        False,
    )
