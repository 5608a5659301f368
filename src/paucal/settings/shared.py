"""Settings that the training commands share, as small dataclasses.

The settings class of a command inherits from several of these dataclasses, so that all settings of the command are
fields of one object. A function that reads only some settings takes the small dataclass that declares these settings.
In the help, the settings of later base classes come first.
"""

from dataclasses import dataclass
from typing import Any, Literal

from paucal.settings.options import MAX_EPOCHS, option

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
ForwardPrecision = Literal["32-true", "bf16-mixed"]
FORWARD_PRECISION_HELP = (
    "precision of a classifier; by default bfloat16 if this CPU is at least 1.3 times as fast with bfloat16 and gives "
    "the same predictions for the first few images, else float32"
)
Strategy = Literal["auto", "ddp", "fsdp"]
Logger = Literal["tensorboard", "mlflow", "wandb"]


DATA_HELP = (
    "folder, zip or tar, CSV, list file, Parquet file or folder, folder or URL of shards, hf:OWNER/NAME, a published "
    "set such as 'cifar10', or 'digits'"
)
# Limits for the alpha of mixup and CutMix, equal to `data.views.augmentation.ALPHA_RANGE`, which is slow to import.
LOWEST_ALPHA, HIGHEST_ALPHA = 1e-3, 1e3
# Defaults in `data.splits.split.make_split`, which is slow to import.
DEFAULT_VAL_FRACTION, DEFAULT_TEST_FRACTION = 0.1, 0.2


@dataclass(frozen=True)
class DataSettings:
    """Location of the images."""

    help_group = "data"
    data: str = option(
        f"{DATA_HELP}; join several sources by ':' (';' on Windows)",
        "digits",
    )
    data_root: str | None = option(
        "folder of the published data sets, or of the images that a table or list file names; by default the folder in "
        "the environment variable PAUCAL_DATA, or the user's cache"
    )
    download: bool = option("download a published data set that is missing", False)
    on_bad_image: Literal["refuse", "skip"] = option("treatment of unreadable images", "refuse")
    image_column: str | None = option("column with the images, or with their paths, in a table or Parquet file")
    channels: int | None = option(
        "channels per image; by default 3, or the number of channels in the files for arrays (.npy, TIFF)",
        low=1,
        high=1024,
    )


@dataclass(frozen=True)
class LabelledDataSettings(DataSettings):
    """Location of labelled images, and the classes to use."""

    help_group = "data"
    label_column: str | None = option("column with the class in a table or Parquet file")
    label_separator: str | None = option(
        "separator between the labels in a table cell, such as ';' or ' '; 'none' for one label per cell; by default "
        "';', '|' or ',' if the content of the cells suggests a separator"
    )
    classes: str | None = option("use only the classes named in this file, or in 'imagenet100'")


@dataclass(frozen=True)
class RecipeSettings:
    """The recipe of a run, which is a named set of settings."""

    recipe: str | None = option(
        "use the settings of a published training with this name; 'paucal recipes' lists the names", group="data"
    )


@dataclass(frozen=True)
class ModelSettings:
    """The backbone and its initial weights."""

    help_group = "model"
    model: str = option("backbone, by the name of a timm model or of one of paucal's models")
    model_args: list[str] | None = option("constructor arguments of the model, as NAME=VALUE", chosen=True)
    img_size: list[int] = option("image size in pixels: one side, or height and width")
    drop_path: float = option("stochastic depth rate", low=0, high=0.95)
    init: str | None = option(
        "initial weights: a run folder, a weights file (.safetensors, .pth), 'timm' (the weights that timm publishes), "
        "or 'none'; by default, 'paucal train' looks for pretrained weights on this machine and otherwise tries to "
        "download some, and 'paucal pretrain' starts from random weights",
        group="fine-tuning",
    )
    init_network: str | None = option(
        "network to use from a published checkpoint with several networks, such as teacher or student; by default the "
        "moving average or the teacher",
        group="fine-tuning",
    )


@dataclass(frozen=True)
class ScheduleSettings:
    """Length, batch size and learning rate of a run."""

    epochs: int | None = option("passes over the training images", low=1, high=MAX_EPOCHS, chosen=True)
    batch_size: int | Literal["auto"] = option("images per forward pass and device", low=1, high=1 << 20)
    accumulate: int = option("forward passes per optimizer step", 1, low=1, high=1 << 20)
    lr: float = option("peak learning rate", above=0)
    min_lr: float = option("learning rate at the end of the cosine schedule", low=0)
    warmup_epochs: float = option("epochs of linear warm-up", low=0)


@dataclass(frozen=True)
class ViewSettings:
    """Augmentation settings that all training commands have."""

    help_group = "augmentation"
    hflip: float = option("probability of a horizontal flip", low=0, high=1)
    normalise: Literal["computed", "imagenet", "model"] = option(
        "source of the mean and standard deviation for normalising images: the training images (computed), ImageNet, "
        "or the model's pretrained weights (model)"
    )


@dataclass(frozen=True)
class MachineSettings:
    """Devices, precision and processes."""

    help_group = "run"
    device: str = option("cpu, cuda or mps")
    precision: Precision = option("numerical precision of training")
    devices: int = option("devices per machine that train together", low=1, high=1024)
    nodes: int = option("machines that train together", low=1, high=4096)
    strategy: Strategy | None = option(
        "distribution of the model over several devices: a full copy on each device (ddp or auto) or a shard (fsdp)",
        chosen=True,
    )
    workers: int = option("processes that load images", low=0, high=64)
    compile: bool = option("compile the backbone with torch.compile", False)
    hang_after: str | None = option(
        "time after which a process that does not respond counts as lost, such as 5m; by default 30m"
    )


@dataclass(frozen=True)
class RunSettings:
    """Seed, time limit and output of a run."""

    help_group = "run"
    seed: int = option("seed for all random numbers", 0, low=0, high=2**62)
    time_limit: str | None = option("save a checkpoint and stop after this time, such as 45m, 8h or 1d12h")
    output: str | None = option("run folder; by default the next free number in runs/")
    overwrite: bool = option("replace an existing run folder", False)
    ledger: bool = option("record which images each step uses, for 'paucal runs verify'", False)
    logger: list[Logger] | None = option("other programs to log to: tensorboard, mlflow, wandb")


@dataclass(frozen=True)
class JobSettings(
    RunSettings, MachineSettings, ScheduleSettings, ViewSettings, ModelSettings, RecipeSettings, DataSettings
):
    """Settings that every training command has."""

    @property
    def epochs_or_1(self) -> int:
        """The number of epochs; 1 if this number is 0 or has not been planned from the time budget yet."""
        return self.epochs or 1

    @property
    def batch_size_or_1(self) -> int:
        """The number of images per forward pass and device; 1 if the batch size has not been chosen yet."""
        return self.batch_size if isinstance(self.batch_size, int) else 1

    @property
    def processes(self) -> int:
        """The number of processes that train together, which is one per device."""
        return (self.devices or 1) * (self.nodes or 1)

    @property
    def effective_batch(self) -> int:
        """The number of images per optimizer step, over all devices and accumulated forward passes."""
        return self.batch_size_or_1 * self.accumulate * self.processes


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
