"""Self-distillation of views and regions (EsViT, sections 4 and A), or only of views (DINO)."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import nn

from paucal.backbones.spec import BackboneSpec
from paucal.data.sampler import steps_per_epoch
from paucal.evaluation.collapse import find_collapse
from paucal.methods.contract import PretrainingMethod
from paucal.methods.pretraining_settings import SelfDistillationSettings
from paucal.objectives import Objective, SelfDistillation, SelfDistillationOptions
from paucal.recipes.esvit import RECIPES
from paucal.recipes.recipe import recipe_learning_rate
from paucal.rules.pretraining import PAPER_REASON
from paucal.rules.resolve import Choice, DataAndMachine, Rule, Shape, rules_by_name
from paucal.settings.options import flag
from paucal.types import Crops, UserError
from paucal.wording import counted

# The student's drop path rates in EsViT's code, by prefix of the model's name; timm's ViTs get the rate of DeiT.
DROP_PATHS = {
    **dict.fromkeys(("swin_small", "swin_base", "swin_large"), 0.2),
    **dict.fromkeys(("swin", "cvt", "vil", "deit", "vit_tiny", "vit_small", "vit_base"), 0.1),
}
PAPER_BATCH, PAPER_MOMENTUM, PAPER_PROTOTYPES = 512, 0.996, 65536
NARROW_CHANNELS = 256  # a backbone with fewer channels counts as small
LONG_RUN_EPOCHS = 100  # a run of at least this number of epochs uses the published settings
MANY_IMAGES = 100_000  # with at least this many images, the published heads are used unchanged
MIN_MOMENTUM = 0.98  # minimum momentum of the teacher; with a lower momentum, small runs collapsed


def lr(recipe: str | None, model: str | None, shape: Shape, effective_batch: int) -> Choice:
    """Choose the paper's learning rate, scaled with the batch size, or with its square root below `PAPER_BATCH`."""
    published = recipe_learning_rate(RECIPES, recipe, model, effective_batch)
    if published is not None:
        return published
    if effective_batch >= PAPER_BATCH:
        return round(5e-4 * effective_batch / 256, 8), f"EsViT's 5e-4 for 256 images, here {effective_batch}"
    is_narrow = shape().dim < NARROW_CHANNELS
    base_batch, source = (64, "tried for small backbones") if is_narrow else (PAPER_BATCH, "EsViT's")
    rate = round(1e-3 * math.sqrt(effective_batch / base_batch), 8)
    return rate, f"1e-3 at batch {base_batch} ({source}), times sqrt({effective_batch}/{base_batch})"


def tasks(region_after: int | None, epochs: int | None) -> Choice:
    """Choose both tasks for long runs, and only the view task for short runs, which the region task made worse."""
    if region_after or (epochs or 0) >= LONG_RUN_EPOCHS:
        return "view+region", PAPER_REASON
    return "view", f"the region task made features worse in runs under {LONG_RUN_EPOCHS} epochs (docs/lab/)"


def out_dim(facts: DataAndMachine) -> Choice:
    """Choose a quarter of the number of images, rounded to a power of two: at least 256, at most the paper's number."""
    n_prototypes = 2 ** round(math.log2(max(facts.n_train / 4, 1)))
    n_prototypes = max(256, min(PAPER_PROTOTYPES, n_prototypes))
    return n_prototypes, f"{facts.n_train} images: one prototype for about 4 images, at most EsViT's {PAPER_PROTOTYPES}"


def hidden_dim(shape: Shape) -> Choice:
    """Choose the paper's width of the MLP, or four times the channels of a narrow backbone."""
    dim = shape().dim
    if 4 * dim >= 2048:
        return 2048, PAPER_REASON
    return 4 * dim, f"four times the {dim} channels of the backbone"


def bottleneck_dim(shape: Shape) -> Choice:
    """Choose DINO's width of the vectors compared with prototypes, or a narrower backbone's number of channels."""
    dim = shape().dim
    return min(256, dim), PAPER_REASON if dim >= 256 else f"the {dim} channels of the backbone"


def head_norm(facts: DataAndMachine) -> Choice:
    """Choose no norm, as in the paper; for few images, choose batch norm, since small runs collapsed without it."""
    if facts.n_train < MANY_IMAGES:
        return "batch", "few images: without it small runs collapsed to the same output for all images"
    return "none", PAPER_REASON


def teacher_temperature(epochs: int | None, warmup_teacher_temperature: float) -> Choice:
    """Choose the paper's temperature for long runs, and the lower initial temperature for short runs."""
    if (epochs or 0) >= LONG_RUN_EPOCHS:
        return 0.07, PAPER_REASON
    return warmup_teacher_temperature, "a short run keeps the initial temperature"


def momentum(facts: DataAndMachine, epochs: int | None, effective_batch: int) -> Choice:
    """Choose the paper's momentum for 512 images, adjusted to the batch size; choose less in a short run."""
    steps = (epochs or 1) * steps_per_epoch(facts.n_train, effective_batch)
    scaled = PAPER_MOMENTUM ** (effective_batch / PAPER_BATCH)
    for_short_run = max(MIN_MOMENTUM, 1 - 20 / max(steps, 20))
    if for_short_run < scaled:
        averaged = round(1 / (1 - for_short_run))
        reason = f"a run of {counted(steps, 'step')}: the teacher averages over {averaged} of them"
        return round(for_short_run, 6), reason
    reason = (
        f"EsViT's {PAPER_MOMENTUM} at batch {PAPER_BATCH}, "
        f"adjusted so that at batch {effective_batch} the teacher averages over as many images"
    )
    return round(scaled, 6), reason


def drop_path(model: str | None) -> Choice:
    """Choose the drop path rate of the paper's backbones; 0 for backbones that are not in `DROP_PATHS`."""
    name = (model or "").removeprefix("esvit_")
    for beginning, rate in DROP_PATHS.items():
        if name.startswith(beginning):
            return rate, PAPER_REASON
    return 0.0, "EsViT has no rate for this backbone"


RULES: dict[str, Rule] = {
    **rules_by_name((lr, tasks, out_dim, hidden_dim, bottleneck_dim, head_norm)),
    "min_lr": lambda lr: (min(1e-6, (lr or 1e-4) / 100), PAPER_REASON),
    "warmup_epochs": lambda epochs: (min(10.0, 0.1 * (epochs or 1)), "a tenth of the epochs, and at most EsViT's 10"),
    "weight_decay": lambda: (0.04, "EsViT's at the beginning"),
    "clip": lambda: (3.0, "EsViT's, separately for each tensor's gradient"),
    "warmup_teacher_epochs": lambda epochs: (
        min(30, math.ceil(0.1 * (epochs or 1))),
        "a tenth of the epochs, as in EsViT's 300",
    ),
    **rules_by_name((teacher_temperature, momentum, drop_path)),
}


def _build_objective(settings: Any, spec: BackboneSpec, crops: Sequence[Crops]) -> Objective:
    objective = SelfDistillation(spec, crops, _loss_options(settings), settings.drop_path)
    if settings.processes > 1 and settings.device == "cuda":  # torch has no synchronized batch norm for CPUs
        for network in (objective.student, objective.teacher):
            network.backbone.model = nn.SyncBatchNorm.convert_sync_batchnorm(network.backbone.model)
            network.heads = nn.SyncBatchNorm.convert_sync_batchnorm(network.heads)  # type: ignore[assignment]
    return objective


def _loss_options(settings: Any) -> SelfDistillationOptions:
    shared = {item.name for item in fields(SelfDistillationOptions)} & vars(settings).keys()
    return SelfDistillationOptions(
        **{name: getattr(settings, name) for name in shared},
        head_batch_norm=settings.head_norm == "batch",
        norm_last_layer=not settings.learn_lengths,
        decays_tables=settings.esvit_preset == "reference",
    )


def _check_tasks(settings: Any) -> None:
    if settings.mixup and settings.tasks not in ("view", None):
        raise UserError(
            "--mixup mixes crops, but a region of a mixed crop has no single match: give --tasks view, or remove "
            "--mixup."
        )
    if settings.region_after is None:
        return
    if settings.tasks == "view":
        raise UserError(
            "--region-after starts the region task, but --tasks view excludes it: give only one of the two options."
        )
    if settings.epochs is not None and settings.region_after >= settings.epochs:
        raise UserError(
            f"{flag('region_after')} {settings.region_after} leaves no epoch of {settings.epochs} for the region "
            "task: give a smaller --region-after, or more --epochs."
        )


def settings_after_collapse(settings: Any, kind: str) -> dict[str, float]:
    """Return new values for some settings after a collapse of the given kind.

    Sharpening counteracts uniform outputs, centring a constant output: these need opposite changes of the teacher's
    temperature (DINO, section 5.3). All other failures need slower updates of student and teacher.
    """
    temperature = settings.teacher_temperature
    if kind == "uniform output":
        start = min(settings.warmup_teacher_temperature, 0.75 * temperature)
        return {"teacher_temperature": 0.75 * temperature, "warmup_teacher_temperature": start}
    slower = {"lr": settings.lr / 2, "momentum": 1 - (1 - settings.momentum) / 2}
    return {"teacher_temperature": 1.25 * temperature, **slower} if kind == "constant output" else slower


def _settings_at_stage(settings: Any, epochs: int) -> Any:
    """Return the settings of the stage after a number of epochs, with only the view task before `region_after`.

    EsViT starts the region task at epoch 200 of 300 in some runs (section 4.1, figure 4).
    """
    if not settings.region_after or epochs >= settings.region_after:
        return settings
    return replace(settings, tasks="view")


def _superseded_settings(settings: Any, origins: Mapping[str, str]) -> Collection[str]:
    """Return the names of recipe settings that given settings make void; see `MethodOrLoss.superseded`."""
    superseded = ["region_after"] if settings.tasks == "view" and "tasks" in origins else []
    superseded += ["tasks"] if settings.region_after is not None and "region_after" in origins else []
    if settings.pipeline in ("alike", "deit") and "pipeline" in origins:
        superseded += ["global_scale", "local_scale"]
    return [*superseded, "drop_path"] if "model" in origins else superseded


METHOD = PretrainingMethod(
    name="self-distillation",
    settings=SelfDistillationSettings,
    rules=RULES,
    check=_check_tasks,
    superseded=_superseded_settings,
    title=lambda settings: f"self-distillation of {settings.tasks.replace('+', 's and ')}s",
    build=_build_objective,
    # The highest weight decay; the objective scales it down in each step.
    weight_decay=lambda settings: max(settings.weight_decay, settings.weight_decay_end),
    clip=lambda settings: None,
    find_collapse=lambda settings, rows, scale, patience: find_collapse(
        rows, settings.out_dim, scale.feature_dim, **scale.limits(patience)
    ),
    settings_after_collapse=settings_after_collapse,
    n_prototypes=lambda settings: settings.out_dim,
    stage_settings=_settings_at_stage,
    next_stage_epoch=lambda settings: settings.region_after,
    next_stage_message="the region task starts with a new head; everything else continues",
)
