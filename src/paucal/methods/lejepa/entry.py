"""LeJEPA: views predict their common centre, and embeddings are kept normally distributed."""

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from paucal.backbones.spec import BackboneSpec
from paucal.evaluation.collapse import PATIENCE, Verdict, find_feature_collapse
from paucal.methods.contract import HealthScale, PretrainingMethod, Row
from paucal.methods.lejepa.settings import LeJepaSettings
from paucal.objectives.base import Objective
from paucal.objectives.finetuning import FineTuning
from paucal.objectives.lejepa import LeJepa, LeJepaOptions
from paucal.rules import continued, crops
from paucal.rules.backbone import backbone_shape, takes_sides
from paucal.rules.crops import PAPER_SIDE
from paucal.rules.facts import DataAndMachine
from paucal.rules.resolve import Choice, rules_by_name
from paucal.types import Crops

AUTHORS = "the authors' value"
BATCH, RATE = 256, 2e-3  # as in the minimal example, a ViT-S with 8-pixel patches
CAREFUL = 5e-4  # the README's rate for other backbones
NARROW = 256  # channels below which a backbone counts as small
HIDDEN = 2048
LOCAL_SIDE = 98  # pixels of the authors' local crops, seven patches of 14


def lr(
    facts: DataAndMachine,
    model: str | None,
    model_args: Sequence[str] | None,
    img_size: Sequence[int] | None,
    effective_batch: int,
) -> Choice:
    """The minimal example's rate for small backbones, the README's for others, by the square root of the batch."""
    if continued.starts_trained(facts):
        return continued.continued_rate(effective_batch)
    is_narrow = backbone_shape(model, model_args, img_size).dim < NARROW
    peak, source = (RATE, "their minimal example") if is_narrow else (CAREFUL, "their README")
    rate = round(peak * math.sqrt(effective_batch / BATCH), 8)
    return rate, f"{peak:g} at batch {BATCH} ({source}), times sqrt({effective_batch}/{BATCH})"


def min_lr(lr: float) -> Choice:
    """A thousandth of the peak."""
    return lr / 1000, AUTHORS


def warmup_epochs(epochs: int | None) -> Choice:
    """One epoch, as in the minimal example; less in a very short run."""
    return min(1.0, 0.1 * (epochs or 1)), "one epoch, and at most a tenth of the run"


def weight_decay(model: str | None, model_args: Sequence[str] | None, img_size: Sequence[int] | None) -> Choice:
    """The authors' weight decay, which differs between transformers and convolutional networks."""
    if backbone_shape(model, model_args, img_size).convolutional:
        return 5e-4, f"{AUTHORS} for a ResNet, here for a network of convolutions"
    return 0.05, f"{AUTHORS} for a ViT"


def clip() -> Choice:
    """No clipping."""
    return 0.0, AUTHORS


def pipeline() -> Choice:
    """All crops alike, as in the authors' README."""
    return "alike", AUTHORS


def local_size(
    local_crops: Sequence[int] | None, model: str | None, model_args: Sequence[str] | None,
    img_size: Sequence[int] | None,
) -> Choice:  # fmt: skip
    """The authors' 98 pixels for 224 if the backbone takes both sizes, as with 14-pixel patches."""
    if set(img_size or [PAPER_SIDE]) == {PAPER_SIDE}:
        if takes_sides(model, model_args, (PAPER_SIDE, LOCAL_SIDE)):
            return [LOCAL_SIDE] * len(local_crops or [0]), AUTHORS
        side, _ = crops.local_size(img_size, local_crops)
        return side, f"{model} does not take the authors' {LOCAL_SIDE} pixels beside {PAPER_SIDE}"
    return crops.local_size(img_size, local_crops)


def local_crops(local_size: Sequence[int] | None, device: str | None) -> Choice:
    """The README's six; four on a CPU."""
    if local_size:
        return [6 // len(local_size)] * len(local_size), "six in all, as in the authors' README"
    return ([4], "four on a CPU; the README has six") if device == "cpu" else ([6], AUTHORS)


def drop_path(model: str | None) -> Choice:
    """The minimal example's rate; none for small backbones."""
    name = model or ""
    return (0.0, "a small backbone") if name.endswith("_mini") else (0.1, AUTHORS)


def projection_hidden(model: str | None, model_args: Sequence[str] | None, img_size: Sequence[int] | None) -> Choice:
    """The authors' width, narrower for a narrow backbone."""
    dim = backbone_shape(model, model_args, img_size).dim
    if 4 * dim >= HIDDEN:
        return HIDDEN, AUTHORS
    return 4 * dim, f"four times the {dim} channels of the backbone"


def _build_objective(settings: Any, spec: BackboneSpec, groups: Sequence[Crops]) -> Objective:
    own = settings.sigreg_weight, settings.sigreg_directions, settings.projection_dim
    return build_projected(LeJepa, settings, spec, groups, own)


def build_projected(
    kind: type[LeJepa], settings: Any, spec: BackboneSpec, groups: Sequence[Crops], own: tuple[float, int, int]
) -> Objective:
    """Build a method that compares projected embeddings; `own` are its weight, directions and width of embeddings."""
    weight, directions, width = own
    options = LeJepaOptions(weight, directions, width, settings.projection_hidden, seed=settings.seed)
    objective = kind(spec, groups, options, settings.drop_path, still_stages(settings))
    if settings.processes > 1 and settings.device == "cuda":  # torch has no such norm for CPUs
        objective.projector = nn.SyncBatchNorm.convert_sync_batchnorm(objective.projector)
    return objective


def still_stages(settings: Any) -> FineTuning:
    """Return the frozen parts: frozen stages, and then the running statistics of the whole network."""
    return FineTuning(freeze=settings.freeze, eval_mode=True) if settings.freeze else FineTuning()


def judge_features(settings: Any, rows: Sequence[Row], scale: HealthScale, patience: int | None) -> Verdict | None:
    """Return the verdict on the health of the features."""
    limits: Any = {
        "batch": scale.batch,
        "grace_steps": scale.grace_steps,
        "patience": PATIENCE if patience is None else patience,
    }
    return find_feature_collapse(rows, scale.feature_dim, **limits)


RULES = rules_by_name(
    (
        *(pipeline, local_crops, local_size, lr, min_lr, warmup_epochs, weight_decay, clip, drop_path),
        *(projection_hidden, *continued.RULES),
    )
)
METHOD = PretrainingMethod(
    name="lejepa",
    summary="views predict their common centre, with normally distributed embeddings: LeJEPA, without a teacher",
    settings=LeJepaSettings,
    rules=RULES,
    title=lambda settings: "LeJEPA: views predict their centre",
    build=_build_objective,
    judge=judge_features,
    settled_start=True,
)
