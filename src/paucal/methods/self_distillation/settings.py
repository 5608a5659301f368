"""The flags of self-distillation."""

from dataclasses import dataclass
from typing import Literal

from paucal.settings.options import MAX_EPOCHS, option
from paucal.settings.supervised import HIGHEST_ALPHA, LOWEST_ALPHA


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
