"""Optimizer, learning-rate schedule, length and batch size of a classification run."""

from dataclasses import replace

import torch

from paucal.data.views.augmentation import Mixing
from paucal.methods.training_settings import TrainSettings
from paucal.models.card import ModelCard
from paucal.objectives import Objective
from paucal.runner.images import SplitImages
from paucal.runner.trainer_inputs import check_sync_bn, length_warnings, trainer_plan
from paucal.tasks.classification.loaders import train_loader
from paucal.training import CosineWarmup, LaggingEpochs, Optimization, Plan, largest_batch
from paucal.types import Batch, UserError

# Learning rate at the start of the warm-up, as a fraction of the peak. DrLoc's code starts at 1e-6 for a peak of 1e-3.
WARMUP_START = 1e-3


def training_plan(settings: TrainSettings, n_train: int, n_classes: int) -> Plan:
    """Return the training plan of the run: its length, seed, hardware, and mixup and cutmix."""
    check_sync_bn(settings)
    mixing = Mixing(mixup=settings.mixup, cutmix=settings.cutmix) if settings.mixup or settings.cutmix else None
    return trainer_plan(settings, n_train, mixing, n_classes)


def make_optimization(settings: TrainSettings, plan: Plan) -> Optimization:
    """Return the settings of the optimizer and its schedule, with durations in steps."""
    peak = settings.lr
    start = WARMUP_START * peak
    if settings.warmup_lr is not None:
        start = settings.warmup_lr
    schedule = CosineWarmup(
        peak=peak,
        horizon=settings.schedule_epochs * plan.steps_per_epoch,
        warmup=round(settings.warmup_epochs * plan.steps_per_epoch),
        start=start,
        floor=settings.min_lr,
    )
    return Optimization(
        LaggingEpochs(schedule, plan.steps_per_epoch) if settings.schedule == "lagging" else schedule,
        weight_decay=settings.weight_decay,
        clip=settings.clip,
        average_decay=settings.average,
    )


def remarks_on_plan(settings: TrainSettings, n_train: int) -> list[str]:
    """Return a warning if `--sync-bn` has no effect, and the warnings of `length_warnings`."""
    warnings = length_warnings(settings, n_train)
    if settings.sync_bn and settings.processes == 1:
        return ["--sync-bn has no effect on a single device", *warnings]
    return warnings


def reduce_batch_to_memory(
    settings: TrainSettings, data: SplitImages, objective: Objective, card: ModelCard
) -> tuple[TrainSettings, str]:
    """Halve the batch size, and double the accumulation, until a training step fits in the memory of the GPU.

    Returns the settings, whose effective batch size is unchanged, and the reason for the batch size.
    """
    default_size = settings.batch_size_or_1
    if settings.device != "cuda":
        return settings, "suits the data; only the memory of a GPU is tested"
    if settings.strategy == "fsdp":
        raise UserError(
            "--batch-size auto is not supported with --strategy fsdp, since it tries steps with the unsharded model on "
            "one device: give --batch-size as a number."
        )
    plan = training_plan(settings, len(data.split_indices("train")), len(data.images.classes))

    def make_batch(size: int) -> Batch:
        loader_settings = replace(settings, batch_size=size, workers=0)
        loader = train_loader(data, card.preprocessing, loader_settings, plan, objective.data_request, 0)
        return next(iter(loader))  # type: ignore[return-value]

    sizes = [default_size // 2**n for n in range(default_size.bit_length()) if default_size % 2**n == 0]
    size = largest_batch(objective, make_batch, sizes, torch.device("cuda"), settings.precision)
    accumulate = settings.accumulate * (default_size // size)
    if size == default_size:
        return settings, "suits the data and fits in memory"
    reason = f"the largest that fits in memory; with {accumulate} passes per step, the effective batch stays the same"
    return replace(settings, batch_size=size, accumulate=accumulate), reason
