"""Self-distillation of views and regions (EsViT), or only of views (DINO)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import nn

from paucal.backbones.spec import BackboneSpec
from paucal.evaluation.collapse import Verdict, find_collapse
from paucal.methods.contract import PretrainingMethod, Row, RunScale
from paucal.methods.self_distillation.rules import RULES
from paucal.methods.self_distillation.settings import SelfDistillationSettings
from paucal.objectives import Objective, SelfDistillation, SelfDistillationOptions
from paucal.rules.resolve import rules_by_name
from paucal.settings.options import flag
from paucal.types import Crops, UserError


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


def _judge_collapse(settings: Any, rows: Sequence[Row], scale: RunScale, patience: int | None) -> Verdict | None:
    return find_collapse(rows, settings.out_dim, scale.feature_dim, **scale.limits(patience))


def settings_after_collapse(settings: Any, kind: str) -> dict[str, float]:
    """Return new values for some settings after a collapse of the given kind.

    Sharpening counteracts uniform outputs, and centring counteracts a constant output. These two failures need opposite
    changes of the teacher's temperature (DINO, section 5.3). All failures except uniform outputs need slower updates of
    student and teacher.
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
    rules=rules_by_name(RULES),
    check=_check_tasks,
    superseded=_superseded_settings,
    title=lambda settings: f"self-distillation of {settings.tasks.replace('+', 's and ')}s",
    build=_build_objective,
    # The highest weight decay; the objective scales it down in each step.
    weight_decay=lambda settings: max(settings.weight_decay, settings.weight_decay_end),
    clip=lambda settings: None,
    judge=_judge_collapse,
    settings_after_collapse=settings_after_collapse,
    n_prototypes=lambda settings: settings.out_dim,
    stage_settings=_settings_at_stage,
    next_stage_epoch=lambda settings: settings.region_after,
    next_stage_message="the region task starts with a new head; everything else continues",
)
