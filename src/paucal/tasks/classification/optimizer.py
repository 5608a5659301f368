"""The optimizer of supervised training, from the settings."""

from paucal.data.views.mixing import Mixing
from paucal.methods.training_settings import TrainSettings
from paucal.runner.trainer_inputs import check_length, check_sync, trainer_plan
from paucal.training import CosineWarmup, LaggingEpochs, Optimization, Plan

START_LR = 1e-3  # share of the peak; the published code warms up from 1e-6 to 1e-3


def training_plan(settings: TrainSettings, n_train: int, n_classes: int) -> Plan:
    """Return the plan of the run: length, seed, hardware, and mixing of images.

    Raises:
        UserError: The device is not available, or a setting does not fit the number of devices.
    """
    check_sync(settings)
    mixing = None
    if settings.mixup or settings.cutmix:
        mixing = Mixing(mixup=settings.mixup or 0.0, cutmix=settings.cutmix or 0.0)
    return trainer_plan(settings, n_train, mixing, n_classes)


def optimization(settings: TrainSettings, plan: Plan) -> Optimization:
    """Return the optimizer's settings in steps."""
    peak = settings.lr or 0.0
    schedule = CosineWarmup(
        peak=peak,
        horizon=(settings.schedule_epochs or 1) * plan.steps_per_epoch,
        warmup=round((settings.warmup_epochs or 0) * plan.steps_per_epoch),
        start=peak * START_LR if settings.warmup_lr is None else settings.warmup_lr,
        floor=settings.min_lr or 0.0,
    )
    return Optimization(
        LaggingEpochs(schedule, plan.steps_per_epoch) if settings.schedule == "lagging" else schedule,
        weight_decay=settings.weight_decay,
        clip=settings.clip or None,
        average_decay=settings.average or None,
    )


def check_plan(settings: TrainSettings, n_train: int) -> list[str]:
    """Return remarks on plans that may give poor results."""
    alone = settings.sync_bn and settings.processes == 1
    return [
        *(["--sync-bn has no effect on one device"] if alone else []),
        *check_length(settings, n_train),
    ]
