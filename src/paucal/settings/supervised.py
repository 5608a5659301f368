"""Settings of supervised training, detection and segmentation: splits, fine-tuning, augmentation, schedule."""

from dataclasses import dataclass
from typing import Any, Literal

from paucal.settings.options import MAX_EPOCHS, MAX_IMAGES, option
from paucal.settings.shared import ScheduleSettings, ViewSettings

# Limits for the alpha of mixup and CutMix, equal to `data.views.augmentation.ALPHA_RANGE`, which is slow to import.
LOWEST_ALPHA, HIGHEST_ALPHA = 1e-3, 1e3
# Defaults in `data.splits.split.make_split`, which is slow to import.
DEFAULT_VAL_FRACTION, DEFAULT_TEST_FRACTION = 0.1, 0.2


@dataclass(frozen=True)
class FractionSettings:
    """Fractions of images used for validation and test, for data sets that do not define these splits themselves."""

    help_group = "data"
    val_fraction: float | None = option(
        f"fraction of the training images used for validation, by default {DEFAULT_VAL_FRACTION}; with 0, the weights "
        "of the last epoch are kept",
        low=0,
        high=0.999,
    )
    test_fraction: float | None = option(
        f"fraction of the images used for testing if the data has no test split, by default {DEFAULT_TEST_FRACTION}",
        above=0,
    )

    @property
    def given_fractions(self) -> dict[str, Any]:
        """The fractions that are not None, by the name of their setting."""
        fractions = {"val_fraction": self.val_fraction, "test_fraction": self.test_fraction}
        return {name: fraction for name, fraction in fractions.items() if fraction is not None}


@dataclass(frozen=True)
class MaskFileSettings:
    """Folders of images and masks, and the meaning of mask values."""

    help_group = "data"
    images: str | None = option("folder of the images, instead of DATA; needs --masks")
    masks: str | None = option("folder of the masks, with the same file names as the images")
    mask_values: Literal["index", "binary", "grey", "colour"] | None = option(
        "meaning of the pixel values in masks: class numbers (index), 0 and 255 (binary), or one grey level or colour "
        "per class; by default detected from the masks"
    )
    ignore: list[int] | None = option(
        "mask value of unlabelled pixels, or its red, green and blue components; by default 255 in index masks",
        low=0,
        high=65535,
    )


@dataclass(frozen=True)
class SyncBatchNormSettings:
    """Synchronisation of batch norms over several GPUs."""

    sync_bn: bool = option("synchronise batch norms over all GPUs", False, group="run")


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
