"""The common settings of the training verbs, in groups; functions take the group that they read.

A verb's settings inherit from groups, so that its flags stay flat. Fields of later bases come first.
"""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import MAX_EPOCHS, option

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
ForwardPrecision = Literal["32-true", "bf16-mixed"]
FORWARD_PRECISION = (
    "precision of a classifier; by default bfloat16 if this CPU is at least 1.3 times as fast with it and gives "
    "the same predictions, else float32"
)
Strategy = Literal["auto", "ddp", "fsdp"]
Logger = Literal["tensorboard", "mlflow", "wandb"]


LABELLED = (
    "folder, zip or tar, CSV, list file, Parquet file or folder, folder or URL of shards, hf:OWNER/NAME, a published "
    "set such as 'cifar10', or 'digits'"
)


@dataclass(frozen=True)
class DataSettings:
    """Location of the images."""

    data: str = option(
        "folder of images, zip or tar, CSV, Parquet file or folder, folder or URL of shards, hf:OWNER/NAME, a "
        "published set, or 'digits'; several places joined by ':' (';' on Windows)",
        "digits",
        group="data",
    )
    data_root: str | None = option(
        "folder of the published sets, or of the images of a table or list file; by default PAUCAL_DATA or the "
        "user's cache",
        group="data",
    )
    download: bool = option("download a missing published set", False, group="data")
    on_bad_image: Literal["refuse", "skip"] = option("treatment of unreadable images", "refuse", group="data")
    image_column: str | None = option("column of a table or of Parquet that holds the path or the image", group="data")
    channels: int | None = option(
        "channels of every image; by default 3, or as many as arrays (.npy, TIFF) have", group="data", low=1, high=1024
    )


@dataclass(frozen=True)
class LabelledDataSettings(DataSettings):
    """Location of labelled images, and the classes to use."""

    label_column: str | None = option("column of a table or of Parquet that holds the class", group="data")
    label_separator: str | None = option(
        "separator of several labels in a cell of a table, such as ';' or ' '; 'none' for one label per cell; by "
        "default ';', '|' or ',' if the cells suggest it",
        group="data",
    )
    classes: str | None = option("use only the classes named in this file, or in 'imagenet100'", group="data")


@dataclass(frozen=True)
class RecipeSettings:
    """The recipe of a run."""

    recipe: str | None = option("named settings, as 'paucal recipes' lists them", group="data")


@dataclass(frozen=True)
class ModelSettings:
    """The backbone and its initial weights."""

    model: str = option("backbone: any timm model, or one of paucal's", group="model")
    model_args: list[str] | None = option(
        "constructor arguments of the model, as NAME=VALUE", group="model", chosen=True
    )
    img_size: list[int] = option("image side in pixels, or height and width", group="model")
    drop_path: float = option("stochastic depth rate", group="model", low=0, high=0.95)
    init: str | None = option(
        "start from a run folder, a weights file (.safetensors, .pth), 'timm' (its published weights) or 'none'; "
        "by default 'paucal train' looks for pretrained weights on this machine and fetches some if possible, "
        "and 'paucal pretrain' starts from random weights",
        group="fine-tuning",
    )
    init_network: str | None = option(
        "which network of a published checkpoint with several: teacher, student, ...; by default an average or "
        "the teacher",
        group="fine-tuning",
    )


@dataclass(frozen=True)
class ScheduleSettings:
    """Length, batch size and learning rate of a run."""

    epochs: int | None = option("passes over the training images", low=1, high=MAX_EPOCHS, chosen=True)
    batch_size: int | Literal["auto"] = option("images per forward pass and device", low=1, high=1 << 20)
    accumulate: int = option("forward passes per optimizer step", 1, low=1, high=1 << 20)
    lr: float = option("peak learning rate", above=0)
    min_lr: float = option("learning rate at the end of the cosine", low=0)
    warmup_epochs: float = option("epochs of linear warm-up", low=0)


@dataclass(frozen=True)
class ViewSettings:
    """The common augmentation settings."""

    hflip: float = option("probability of a horizontal flip", group="augmentation", low=0, high=1)
    normalise: Literal["computed", "imagenet", "model"] = option(
        "source of the mean and standard deviation", group="augmentation"
    )


@dataclass(frozen=True)
class MachineSettings:
    """Devices, precision and processes."""

    device: str = option("cpu, cuda or mps", group="run")
    precision: Precision = option("precision of the computation", group="run")
    devices: int = option("devices per machine that train together", group="run", low=1, high=1024)
    nodes: int = option("machines that train together", group="run", low=1, high=4096)
    strategy: Strategy | None = option(
        "distribution of the model over several devices: a full copy on each (ddp, same as auto) or a shard (fsdp)",
        group="run",
        chosen=True,
    )
    workers: int = option("processes that load images", group="run", low=0, high=64)
    compile: bool = option("compile the backbone with torch.compile", False, group="run")
    hang_after: str | None = option(
        "time without an answer after which another process counts as lost, such as 5m; by default 30m", group="run"
    )


@dataclass(frozen=True)
class RunSettings:
    """Seed, time limit and output of a run."""

    seed: int = option("seed for all random numbers", 0, group="run", low=0, high=2**62)
    time_limit: str | None = option("stop and save after this time, such as 45m, 8h or 1d12h", group="run")
    output: str | None = option("run folder; by default the next number below runs/", group="run")
    overwrite: bool = option("replace an existing run folder", False, group="run")
    ledger: bool = option("record the images of every step, for 'paucal runs verify'", False, group="run")
    logger: list[Logger] | None = option("also log to other programs: tensorboard, mlflow, wandb", group="run")


@dataclass(frozen=True)
class JobSettings(
    RunSettings, MachineSettings, ScheduleSettings, ViewSettings, ModelSettings, RecipeSettings, DataSettings
):
    """The settings of every verb that trains."""

    @property
    def passes(self) -> int:
        """The epochs; 1 until the time budget has planned them, and for a linear probe without training."""
        return self.epochs or 1

    @property
    def images_per_pass(self) -> int:
        """The batch size of one device; 1 until it is resolved."""
        return self.batch_size if isinstance(self.batch_size, int) else 1

    @property
    def processes(self) -> int:
        """The number of processes that train together."""
        return (self.devices or 1) * (self.nodes or 1)

    @property
    def effective_batch(self) -> int:
        """The images of one optimizer step, over all devices and forward passes."""
        return self.images_per_pass * self.accumulate * self.processes
