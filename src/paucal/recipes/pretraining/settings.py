"""The settings of a pre-training run: one flat, typed dataclass, from which flags and config keys are made.

A value of None means "choose it from the data"; `rules.py` does so and says why. What pre-training shares with
training is declared there.
"""

from dataclasses import dataclass, fields
from typing import Literal

from paucal.recipes.settings import TrainSettings, option, setting_fields, shared


@dataclass(frozen=True)
class PretrainSettings:
    """Every setting of `paucal pretrain`; the command line and `paucal.pretrain` share it."""

    data: str = option(
        "folder of images in any depth, Parquet file or folder, a published set such as 'cifar10', or 'digits'; "
        "labels are not used",
        "digits",
        group="data",
    )
    data_root: str | None = shared("data_root")
    download: bool = shared("download")
    on_bad_image: Literal["refuse", "skip"] = shared("on_bad_image")

    recipe: str | None = option("named settings, as 'paucal recipes' lists them", group="data")

    model: str | None = shared("model")
    model_args: list[str] | None = shared("model_args")
    drop_path: float | None = option("stochastic depth rate of the student", group="model")
    init: str | None = shared("init")
    init_network: str | None = shared("init_network")

    img_size: list[int] | None = option("side of the global crops in pixels, or height and width", group="crops")
    global_crops: int = option("global crops of an image, which the teacher sees", 2, group="crops")
    global_scale: list[float] | None = option("share of an image's area that a global crop covers", group="crops")
    local_crops: list[int] | None = option("local crops of an image, a number for each of their sizes", group="crops")
    local_size: list[int] | None = option("sides of the local crops in pixels", group="crops")
    local_scale: list[float] | None = option("share of an image's area that a local crop covers", group="crops")
    pipeline: Literal["dino", "deit"] = option("how crops are changed", "dino", group="crops")
    blur: list[float] | None = option("range of the blur's radius in pixels", group="crops")
    hflip: float | None = shared("hflip")
    normalise: Literal["computed", "imagenet", "model"] | None = shared("normalise")

    tasks: Literal["view", "view+region"] | None = option(
        "compare crops (view), or crops and their cells (view+region)", group="method"
    )
    region_after: int | None = option(
        "epochs of the view task alone, after which the region task joins; the optimizer's state goes on",
        group="method",
    )
    similarity: Literal["cosine", "dot"] = option("how a cell's counterpart is found", "cosine", group="method")
    out_dim: int | None = option("prototypes of each head", group="method")
    hidden_dim: int | None = option("width of the heads' MLP", group="method")
    bottleneck_dim: int | None = option("width of what is compared with prototypes", group="method")
    head_layers: int = option("linear layers of the heads' MLP", 3, group="method")
    head_norm: Literal["none", "batch"] | None = option("normalisation in the heads' MLP", group="method")
    learn_lengths: bool = option("learn the lengths of prototypes too (less stable)", False, group="method")
    freeze_last_layer: int = option("epochs at the beginning in which prototypes stay as they are", 1, group="method")
    student_temperature: float = option("temperature of the student", 0.1, group="method")
    teacher_temperature: float | None = option("temperature of the teacher", group="method")
    warmup_teacher_temperature: float = option("temperature of the teacher at the beginning", 0.04, group="method")
    warmup_teacher_epochs: int | None = option("epochs between the two temperatures", group="method")
    momentum: float | None = option("share of the old teacher in the new one, at the beginning", group="method")
    centre_momentum: float = option("share of the old centre in the new one", 0.9, group="method")
    teacher_norm: Literal["batch", "running"] = option(
        "statistics of the teacher's BatchNorms: of the batch, as published, or running ones", "batch", group="method"
    )
    mixup: float = option(
        "alpha of mixup between the student's crops (view task only); 0 for none", 0.0, group="method"
    )

    epochs: int | None = shared("epochs")
    batch_size: int | None = option("images per forward pass and device")
    accumulate: int = shared("accumulate")
    lr: float | None = shared("lr")
    min_lr: float | None = shared("min_lr")
    warmup_epochs: float | None = shared("warmup_epochs")
    weight_decay: float = option("weight decay of AdamW at the beginning", 0.04)
    weight_decay_end: float = option("weight decay of AdamW at the end", 0.4)
    clip: float = option("L2 norm to which each tensor's gradient is clipped by itself; 0 for no clipping", 3.0)

    monitor: str | None = option(
        "labelled images on which nearest neighbours are tried after each epoch; nothing is trained on them",
        group="watching",
    )
    monitor_images: int = option("images of the monitor to use, at most", 5000, group="watching")
    on_collapse: Literal["warn", "stop", "rollback"] = option(
        "what to do when the networks collapse: say so, stop, or go back to the last healthy state and on from there "
        "with settings that pull the other way",
        "warn",
        group="watching",
    )

    seed: int = shared("seed")
    device: str | None = shared("device")
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] | None = shared("precision")
    devices: int | None = shared("devices")
    nodes: int | None = shared("nodes")
    strategy: Literal["auto", "ddp", "fsdp"] | None = shared("strategy")
    workers: int | None = shared("workers")
    time_limit: str | None = shared("time_limit")
    compile: bool = shared("compile")
    output: str | None = shared("output")
    overwrite: bool = shared("overwrite")

    def as_training(self) -> TrainSettings:
        """Return what the two verbs share, as settings of training."""
        common = {f.name for f in fields(self)} & set(setting_fields())
        taken = {name: getattr(self, name) for name in common - {"recipe"}}
        return TrainSettings(**taken, method="supervised")
