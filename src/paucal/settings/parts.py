"""Settings that only supervised training has: splits, fine-tuning and augmentation."""

from dataclasses import dataclass
from typing import Any, Literal

from paucal.settings.groups import ScheduleSettings, ViewSettings
from paucal.settings.options import MAX_COUNT, MAX_EPOCHS, option

LOWEST_ALPHA, HIGHEST_ALPHA = 1e-3, 1e3  # `data.views.augmentation.ALPHA_RANGE`, which is slow to import


@dataclass(frozen=True)
class FractionSettings:
    """Shares of the validation and test images, for data sets that do not define these splits themselves."""

    val_fraction: float | None = option(
        "share of the training images kept for validation; 0 for none, which keeps the weights of the last epoch",
        group="data",
        low=0,
        high=0.999,
    )
    test_fraction: float | None = option("share kept for the test if the data has no test split", group="data", above=0)

    @property
    def given_fractions(self) -> dict[str, Any]:
        """The shares that are set, by the name of their setting."""
        shares = {"val_fraction": self.val_fraction, "test_fraction": self.test_fraction}
        return {name: share for name, share in shares.items() if share is not None}


@dataclass(frozen=True)
class MaskFileSettings:
    """Folders of images and masks, and the meaning of mask values."""

    images: str | None = option("folder of the images, instead of DATA; needs --masks", group="data")
    masks: str | None = option("folder of the masks, with the same file names as the images", group="data")
    mask_values: Literal["index", "binary", "grey", "colour"] | None = option(
        "meaning of the pixel values in masks: class numbers (index), 0 and 255 (binary), or one grey level or colour "
        "per class; by default detected from the masks",
        group="data",
    )
    ignore: list[int] | None = option(
        "value of unlabelled pixels, or their red, green and blue; by default 255 in index masks",
        group="data",
        low=0,
        high=65535,
    )


@dataclass(frozen=True)
class SyncBatchNormSettings:
    """Batch norms that are synchronised over GPUs."""

    sync_bn: bool = option("synchronise batch norms over all GPUs", False, group="run")


@dataclass(frozen=True)
class SplitSettings(FractionSettings):
    """The training images to use, and the split into training, validation and test images."""

    fraction: float | None = option("use only this share of the training images, stratified", group="data", above=0)
    few_labels: int | None = option("number of training images per class to use", group="data", low=1, high=MAX_COUNT)
    group_by: str | None = option(
        "keep the images of a group in the same split: groups are the values of a column of the table, 'duplicates', "
        "or the matches of a pattern in the file names, such as 'patient[0-9]+'",
        group="data",
    )
    split: str | None = option("use the split in this split.csv", group="data")
    folds: int | None = option("cross-validate with this number of folds", group="data", low=2, high=100)
    fold: str | None = option("train with one fold as the test set, such as 2/5", group="data")


@dataclass(frozen=True)
class BalanceSettings:
    """Balancing of classes with different numbers of images."""

    class_weights: Literal["none", "auto"] = option(
        "weights of the classes in the loss: auto gives all classes the same total weight", "none"
    )
    sampling: Literal["shuffled", "balanced"] = option(
        "training images of an epoch: all in random order, or the same number from every class", "shuffled"
    )


@dataclass(frozen=True)
class FineTuningSettings:
    """Fine-tuning of pretrained backbones, and random initialisation."""

    attention_init: Literal["model", "mimetic"] = option(
        "random initialisation of attention weights: that of the model, or similar to trained transformers (mimetic)",
        "model",
        group="model",
    )
    init_head: Literal["auto", "keep", "fresh"] = option(
        "whether to keep the classifier of the initial weights: if its classes match (auto), always (keep) or never "
        "(fresh)",
        "auto",
        group="fine-tuning",
    )
    layer_decay: float | None = option(
        "learning rate of each layer, divided by that of the layer above it, such as 0.75",
        group="fine-tuning",
        low=0.01,
        high=1,
    )
    freeze: Literal["stem", "backbone", "weights"] | int | None = option(
        "frozen part: stem, backbone (all but the classifier), weights (all but norms, biases and the "
        "classifier), or a number of stages",
        group="fine-tuning",
    )
    lora_rank: int | None = option(
        "tune a transformer through low-rank adapters (LoRA) of this rank on its attention, such as 8, with at "
        "least 16 images per class; other weights are frozen, and the architecture does not change",
        group="fine-tuning",
        low=1,
        high=1024,
    )
    frozen_views: int = option(
        "augmented views per image that pass the frozen stages once, before training; training uses their stored "
        "activations in turn; 0 for new views in every epoch",
        0,
        group="fine-tuning",
        low=0,
        high=1000,
    )
    freeze_epochs: int = option(
        "first epochs, in which only the classifier is trained",
        0,
        group="fine-tuning",
        low=0,
        high=MAX_EPOCHS,
    )
    eval_mode: bool = option(
        "keep the backbone in evaluation mode: fixed running statistics, no dropout", False, group="fine-tuning"
    )


@dataclass(frozen=True)
class AugmentationSettings(ViewSettings):
    """Augmentation of training images."""

    repeats: int = option(
        "times that an epoch uses each image in succession, each with a new augmentation",
        1,
        group="augmentation",
        low=1,
        high=1000,
    )
    resize: Literal["crop", "letterbox", "squash"] = option(
        "treatment of images whose shape differs from the network's input: a crop, padding with the mean colour, or "
        "stretching",
        "crop",
        group="augmentation",
    )
    crop: Literal["random-resized", "padded", "none"] = option("training crop", group="augmentation")
    crop_scale: float | None = option(
        "smallest share of the image's area that a random crop covers",
        group="augmentation",
        low=0.01,
        high=1,
        chosen=True,
    )
    rand_augment: str = option("RandAugment in timm's notation, or 'none'", group="augmentation")
    erase: float = option("probability of random erasing", group="augmentation", low=0, high=1)
    mixup: float = option(
        "alpha of mixup; 0 for none", group="augmentation", low=LOWEST_ALPHA, high=HIGHEST_ALPHA, or_zero=True
    )
    cutmix: float = option(
        "alpha of cutmix; 0 for none", group="augmentation", low=LOWEST_ALPHA, high=HIGHEST_ALPHA, or_zero=True
    )


@dataclass(frozen=True)
class TrainScheduleSettings(ScheduleSettings):
    """The length and the optimizer of supervised training."""

    epochs: int | None = option(
        "passes over the training images; 0 for only a linear probe of pretrained weights",
        low=0,
        high=MAX_EPOCHS,
        chosen=True,
    )
    time: str | None = option(
        "plan the run to end after this time, such as 15m, 2h or 1d, in place of --epochs; by default a quarter of an "
        "hour, half an hour on a GPU",
        chosen=True,
    )
    schedule_epochs: int = option("length of the cosine in epochs; by default all epochs", low=1, high=MAX_EPOCHS)
    batch_size: int | Literal["auto"] = option(
        "images per forward pass and device; 'auto' halves the usual number until it fits in memory, and accumulates",
        low=1,
        high=1 << 20,
    )
    warmup_lr: float | None = option(
        "learning rate at the beginning of the warm-up; by default a thousandth of the peak", low=0
    )
    schedule: Literal["step", "lagging"] = option(
        "when the learning rate changes: every step, or every epoch with a delay of one epoch, as in DeiT's code",
        "step",
    )
    weight_decay: float = option("weight decay of AdamW", 0.05, low=0)
    clip: float = option("L2 norm to which gradients are clipped; 0 for no clipping", 5.0, low=0)
    average: float = option("decay of the moving average of the weights; 0 for none", low=0, high=0.999999)
    soup: int = option(
        "average the weights of up to this many of the best epochs if that improves the validation score; 0 for the "
        "best epoch alone",
        low=0,
        high=20,
    )
    calibrate: Literal["temperature", "none"] = option(
        "fit a temperature on the validation images so that confidence matches accuracy; it does not change the "
        "predicted classes",
        "temperature",
    )
    label_smoothing: float = option("label smoothing", 0.1, low=0, high=0.999)
