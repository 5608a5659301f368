"""LeJEPA and VISReg: views predict their common centre, and embeddings are kept normally distributed.

The rules also choose the learning rate, epochs and frozen stages of runs that start from weights trained on many
images. A high learning rate or many epochs on few images would destroy the features that these weights compute.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from paucal.backbones.spec import BackboneSpec
from paucal.evaluation.collapse import Verdict, find_feature_collapse
from paucal.methods.contract import PretrainingMethod, Row, RunScale
from paucal.methods.pretraining_settings import LeJepaSettings, VisRegSettings
from paucal.objectives.base import Objective
from paucal.objectives.finetuning import FineTuning
from paucal.objectives.one_network import LeJepa, LeJepaOptions, VisReg
from paucal.rules import pretraining
from paucal.rules.pretraining import PAPER_SIDE
from paucal.rules.resolve import Choice, DataAndMachine, Rule, Shape, rules_by_name, supports_sides
from paucal.types import Crops

VISREG = "visreg"
PUBLISHED_RATE, PUBLISHED_BATCH = 1e-4, 32  # DIET-CP's highest learning rate (arXiv:2509.06990) and its batch size
GPU_VIEWS, CPU_VIEWS = 100_000, 15_000  # images seen in a run (epochs times training images), on a GPU and on a CPU
MIN_EPOCHS, MAX_EPOCHS = 3, 30  # limits of the number of epochs
FROZEN_STAGES_FRACTION = 0.5  # fraction of the stages, beginning with the first, that is frozen
AUTHORS_REASON = "LeJEPA's value"
# Batch size and learning rate of the authors' minimal example, a ViT-S with 8-pixel patches.
EXAMPLE_BATCH, EXAMPLE_RATE = 256, 2e-3
README_RATE = 5e-4  # learning rate in the authors' README, for backbones with at least NARROW_CHANNELS channels
NARROW_CHANNELS = 256  # a backbone with fewer channels counts as small
PAPER_HIDDEN = 2048  # width of the projector
LOCAL_SIDE = 98  # side of the authors' local crops in pixels: seven patches of 14 pixels


def has_trained_weights(facts: DataAndMachine) -> bool:
    """Return whether a run starts from weights that were trained on many images."""
    return facts.initial_weights is not None and not facts.initial_weights.undertrained


def continued_rate(batch_size: int) -> Choice:
    """Choose DIET-CP's learning rate, multiplied by sqrt(batch size / DIET-CP's batch size)."""
    rate = round(PUBLISHED_RATE * math.sqrt(batch_size / PUBLISHED_BATCH), 8)
    factor = f"sqrt({batch_size}/{PUBLISHED_BATCH})"
    return rate, f"pretrained weights: DIET-CP's {PUBLISHED_RATE:g} at batch {PUBLISHED_BATCH}, times {factor}"


def epochs(facts: DataAndMachine, device: str | None) -> Choice:
    """Choose few epochs for pretrained weights, and the usual number for random weights."""
    if not has_trained_weights(facts):
        return pretraining.epochs(facts, device)
    n_views = CPU_VIEWS if device == "cpu" else GPU_VIEWS
    n_epochs = max(MIN_EPOCHS, min(MAX_EPOCHS, round(n_views / facts.n_train)))
    return n_epochs, f"pretrained weights: few epochs, about {n_views:,} images seen"


def freeze(facts: DataAndMachine, shape: Shape) -> Choice:
    """Choose to freeze the first half of the stages of pretrained weights, and no stage of random weights."""
    if not has_trained_weights(facts):
        return 0, "all stages are trained"
    stages = shape().stages
    reason = f"pretrained weights: the first half of the {stages} stages suits any photographs"
    return int(FROZEN_STAGES_FRACTION * stages), reason


def lr(facts: DataAndMachine, shape: Shape, effective_batch: int) -> Choice:
    """Choose the rate of the authors' minimal example for a small backbone, else the rate in their README.

    The rate is scaled by the square root of the batch size; runs from trained weights use `continued_rate`.
    """
    if has_trained_weights(facts):
        return continued_rate(effective_batch)
    is_narrow = shape().dim < NARROW_CHANNELS
    peak, source = (EXAMPLE_RATE, "LeJEPA's minimal example") if is_narrow else (README_RATE, "LeJEPA's README")
    rate = round(peak * math.sqrt(effective_batch / EXAMPLE_BATCH), 8)
    return rate, f"{peak:g} at batch {EXAMPLE_BATCH} ({source}), times sqrt({effective_batch}/{EXAMPLE_BATCH})"


def weight_decay(shape: Shape) -> Choice:
    """Choose the authors' weight decay, which differs between transformers and convolutional networks."""
    if shape().convolutional:
        return 5e-4, f"{AUTHORS_REASON} for a ResNet, here for a network of convolutions"
    return 0.05, f"{AUTHORS_REASON} for a ViT"


def local_size(
    local_crops: Sequence[int] | None, model: str | None, model_args: Sequence[str] | None, img_size: Sequence[int]
) -> Choice:
    """Choose the authors' 98 pixels for global crops of 224 if the backbone takes both sizes."""
    side, reason = pretraining.local_size(img_size, local_crops)
    if set(img_size) != {PAPER_SIDE}:
        return side, reason
    if supports_sides(model, model_args, (PAPER_SIDE, LOCAL_SIDE)):
        return [LOCAL_SIDE] * len(local_crops or [0]), AUTHORS_REASON
    return side, f"{model} does not take LeJEPA's {LOCAL_SIDE} pixels beside {PAPER_SIDE}"


def local_crops(local_size: Sequence[int] | None, device: str | None) -> Choice:
    """Choose six local crops, as in the authors' README; four on a CPU."""
    if local_size:
        return [6 // len(local_size)] * len(local_size), "six in all, as in LeJEPA's README"
    return ([4], "four on a CPU; LeJEPA's README has six") if device == "cpu" else ([6], AUTHORS_REASON)


def drop_path(model: str | None) -> Choice:
    """Choose the drop path rate of the authors' minimal example; 0 for models with a name that ends in "_mini"."""
    name = model or ""
    return (0.0, "a small backbone") if name.endswith("_mini") else (0.1, AUTHORS_REASON)


def projection_hidden(shape: Shape) -> Choice:
    """Choose the authors' width of the projector, or four times the channels of a narrow backbone."""
    dim = shape().dim
    if 4 * dim >= PAPER_HIDDEN:
        return PAPER_HIDDEN, AUTHORS_REASON
    return 4 * dim, f"four times the {dim} channels of the backbone"


def _build_objective(settings: Any, spec: BackboneSpec, groups: Sequence[Crops]) -> Objective:
    kind, own_options = LeJepa, (settings.sigreg_weight, settings.sigreg_directions, settings.projection_dim)
    if settings.method == VISREG:
        kind, own_options = VisReg, (settings.visreg_weight, settings.visreg_directions, settings.visreg_dim)
    options = LeJepaOptions(*own_options, settings.projection_hidden, seed=settings.seed)
    objective = kind(spec, groups, options, settings.drop_path, freeze_options(settings))
    if settings.processes > 1 and settings.device == "cuda":  # torch has no synchronized batch norm for CPUs
        objective.projector = nn.SyncBatchNorm.convert_sync_batchnorm(objective.projector)
    return objective


def freeze_options(settings: Any) -> FineTuning:
    """Return the options of `--freeze`: the first stages are frozen, and all running statistics are fixed."""
    return FineTuning(freeze=settings.freeze, eval_mode=True) if settings.freeze else FineTuning()


def find_collapse(settings: Any, rows: Sequence[Row], scale: RunScale, patience: int | None) -> Verdict | None:
    """Return the failure that the metrics of the features show; see `PretrainingMethod.find_collapse`."""
    return find_feature_collapse(rows, scale.feature_dim, **scale.limits(patience))


RULES: dict[str, Rule] = {
    "pipeline": lambda: ("alike", AUTHORS_REASON),
    **rules_by_name((local_crops, local_size, lr)),
    "min_lr": lambda lr: (lr / 1000, AUTHORS_REASON),
    "warmup_epochs": lambda epochs: (min(1.0, 0.1 * (epochs or 1)), "one epoch, and at most a tenth of the run"),
    "clip": lambda: (0.0, AUTHORS_REASON),  # no gradient clipping
    **rules_by_name((weight_decay, drop_path, projection_hidden, epochs, freeze)),
}
_SHARED_FIELDS: dict[str, Any] = {
    "rules": RULES,
    "build": _build_objective,
    "find_collapse": find_collapse,
    "healthy_from_start": True,
}
METHODS = (
    PretrainingMethod(
        name="lejepa",
        settings=LeJepaSettings,
        title=lambda settings: "LeJEPA: views predict their centre",
        **_SHARED_FIELDS,
    ),
    PretrainingMethod(
        name=VISREG,
        settings=VisRegSettings,
        title=lambda settings: "VISReg: views predict their mean",
        **_SHARED_FIELDS,
    ),
)
