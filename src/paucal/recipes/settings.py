"""The settings of a training run: one flat, typed dataclass, from which flags and config keys are made.

A value of None means "choose it from the data"; `auto.py` does so and says why.
"""

from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

AUTO = None


def option(help: str, default: Any = AUTO, *, group: str = "training", choices: Any = None) -> Any:
    """Declare a setting: its default, what it does, and the heading it is shown under."""
    return field(default=default, metadata={"help": help, "group": group, "choices": choices})


@dataclass(frozen=True)
class TrainSettings:
    """Every setting of `paucal train`; the command line and `paucal.train` share it."""

    data: str = option(
        "folder of images, Parquet file or folder, list file, a published set such as 'cifar10', or 'digits'",
        "digits",
        group="data",
    )
    classes: str | None = option("use only the classes named in this file, or in 'imagenet100'", group="data")
    data_root: str | None = option(
        "folder of the published sets, or of the images of a list file; by default PAUCAL_DATA or the user's cache",
        group="data",
    )
    download: bool = option("fetch a published set that is not there", False, group="data")
    fraction: float | None = option("use only this share of the training images, stratified", group="data")
    few_labels: int | None = option("use only so many training images per class", group="data")
    val_fraction: float | None = option("share of the training images kept for validation", group="data")
    test_fraction: float | None = option("share kept for the test where the data has no test part", group="data")
    on_bad_image: Literal["refuse", "skip"] = option("what to do about unreadable images", "refuse", group="data")

    recipe: str | None = option("named settings, as 'paucal recipes' lists them", group="data")

    model: str | None = option("backbone: any timm model, or one of paucal's", group="model")
    model_args: list[str] | None = option("constructor arguments of the model, as NAME=VALUE", group="model")
    img_size: list[int] | None = option("image side in pixels, or height and width", group="model")
    drop_path: float | None = option("stochastic depth rate", group="model")
    attention_init: Literal["model", "mimetic"] = option(
        "how attention weights begin: as the model draws them, or close to those of trained transformers",
        "model",
        group="model",
    )

    init: str | None = option(
        "start from a run folder, a weights file (.safetensors, .pth) or 'timm' (its published weights)",
        group="fine-tuning",
    )
    init_head: Literal["auto", "keep", "fresh"] = option(
        "the start's classifier: kept where it has this run's classes, always or never", "auto", group="fine-tuning"
    )
    init_network: str | None = option(
        "of several networks in a published checkpoint, the one to take: teacher, student, ...; by default an average "
        "or the teacher",
        group="fine-tuning",
    )
    layer_decay: float | None = option(
        "factor on the learning rate from one layer to the one below it, such as 0.75", group="fine-tuning"
    )
    freeze: Literal["stem", "backbone"] | int | None = option(
        "what never changes: stem, backbone (all but the classifier), or a number of stages", group="fine-tuning"
    )
    freeze_epochs: int = option(
        "epochs at the beginning in which the backbone is held still and only its classifier learns",
        0,
        group="fine-tuning",
    )

    eval_mode: bool = option(
        "keep the backbone in evaluation mode: running statistics stay as they are and nothing is dropped",
        False,
        group="fine-tuning",
    )

    method: str = option("training method", "drloc", group="method")
    labels: str | None = option("folder of label maps that 'paucal label' has made", group="method")
    token_preset: Literal["paper", "reference"] = option(
        "reading of token labeling: the paper's formula or the published program's", "paper", group="method"
    )
    token_weight: float | None = option("weight of the tokens' part of the loss", group="method")
    no_mix_token: bool = option("do not exchange boxes of cells between images", False, group="method")
    add: list[str] | None = option("extra losses beside the method's own", group="method")
    guide: str | None = option("run of a small CNN whose cells the blocks imitate with --add locality", group="method")
    guide_weight: float | None = option("weight of the loss of --add locality", group="method")
    drloc_preset: Literal["paper", "reference"] = option(
        "reading of the DrLoc loss: the paper's formula or the published program's", "paper", group="method"
    )
    drloc_weight: float | None = option("weight of the DrLoc loss", group="method")
    drloc_mode: Literal["l1", "signed", "ce", "reg"] | None = option("variant of the DrLoc loss", group="method")
    drloc_levels: Literal["last", "stages", "blocks"] | None = option(
        "grids the DrLoc loss reads: the last one, one per stage or one per block", group="method"
    )
    drloc_pairs: int | None = option("pairs of cells per image", group="method")
    drloc_hidden: int | None = option("width of the localization MLP", group="method")
    drloc_pool: Literal["none", "paper", "reference"] | int | None = option(
        "pooling of the grid before the DrLoc loss: a rule, or the side to pool to", group="method"
    )

    epochs: int | None = option("passes over the training images")
    schedule_epochs: int | None = option("length of the cosine, where it is not the number of epochs")
    batch_size: int | Literal["auto"] | None = option(
        "images per forward pass and device; 'auto' halves the usual number until it fits in memory, and accumulates"
    )
    accumulate: int = option("forward passes per optimizer step", 1)
    lr: float | None = option("peak learning rate")
    min_lr: float | None = option("learning rate at the end of the cosine")
    warmup_epochs: float | None = option("epochs of linear warm-up")
    warmup_lr: float | None = option(
        "learning rate at the beginning of the warm-up; by default a thousandth of the peak"
    )
    schedule: Literal["step", "lagging"] = option(
        "when the learning rate changes: every step, or every epoch and an epoch late, as in DeiT's program", "step"
    )
    weight_decay: float = option("weight decay of AdamW", 0.05)
    clip: float = option("L2 norm to which gradients are clipped; 0 for no clipping", 5.0)
    average: float | None = option("decay of the moving average of the weights; 0 for none")
    label_smoothing: float = option("label smoothing", 0.1)

    repeats: int = option("times an image is drawn in a row, each time changed anew", 1, group="augmentation")
    crop: Literal["random-resized", "padded", "none"] | None = option("training crop", group="augmentation")
    crop_scale: float | None = option("smallest share of the area of a random crop", group="augmentation")
    hflip: float | None = option("probability of a horizontal flip", group="augmentation")
    rand_augment: str | None = option("RandAugment in timm's notation, or 'none'", group="augmentation")
    erase: float | None = option("probability of random erasing", group="augmentation")
    mixup: float | None = option("alpha of mixup; 0 for none", group="augmentation")
    cutmix: float | None = option("alpha of cutmix; 0 for none", group="augmentation")
    normalise: Literal["computed", "imagenet", "model"] | None = option(
        "whose mean and standard deviation", group="augmentation"
    )

    seed: int = option("seed of everything random", 0, group="run")
    device: str | None = option("cpu, cuda or mps", group="run")
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] | None = option("arithmetic", group="run")
    devices: int | None = option("devices per machine that train together", group="run")
    nodes: int | None = option("machines that train together", group="run")
    strategy: Literal["auto", "ddp", "fsdp"] | None = option(
        "what each of several devices keeps of the model: all of it (ddp, which auto means) or a piece (fsdp)",
        group="run",
    )
    sync_bn: bool = option("batch norms take their statistics over all GPUs", False, group="run")
    workers: int | None = option("processes that load images", group="run")
    time_limit: str | None = option("stop and save after this time, such as 45m, 8h or 1d12h", group="run")
    compile: bool = option("compile the backbone with torch.compile", False, group="run")
    output: str | None = option("run folder; by default the next number below runs/", group="run")
    overwrite: bool = option("replace an existing run folder", False, group="run")

    @property
    def images_per_pass(self) -> int:
        """The batch size of one device once it is resolved; 1 before."""
        return self.batch_size if isinstance(self.batch_size, int) else 1


def setting_fields() -> dict[str, Field]:
    """Return the fields by name."""
    return {f.name: f for f in fields(TrainSettings)}


def shared(name: str) -> Any:
    """Declare a setting that `paucal train` has too, with its help and default, for another verb."""
    own = setting_fields()[name]
    return field(default=own.default, metadata=own.metadata)


def flag(name: str) -> str:
    """Return the flag of a setting.

    Example:
        >>> flag("batch_size")
        '--batch-size'
    """
    return "--" + name.replace("_", "-")
