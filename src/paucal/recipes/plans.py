"""Settings turned into what the trainer is told."""

from paucal.data.mixing import Mixing
from paucal.recipes.auto import steps_per_epoch
from paucal.recipes.facts import Facts, best_device
from paucal.recipes.settings import TrainSettings
from paucal.training import CosineWarmup, Hardware, Optimization, Plan
from paucal.types import UserError

FEW_STEPS = 5
ACCELERATORS = ("cpu", "cuda", "mps")
START_LR = 1e-3  # of the peak; the published program warms up from 1e-6 to 1e-3


def training_plan(settings: TrainSettings, facts: Facts) -> Plan:
    """Return the length of the run, its randomness and its hardware."""
    per_epoch = steps_per_epoch(facts, settings)
    mixing = None
    if settings.mixup or settings.cutmix:
        mixing = Mixing(mixup=settings.mixup or 0.0, cutmix=settings.cutmix or 0.0)
    return Plan(
        total_steps=per_epoch * (settings.epochs or 1),
        steps_per_epoch=per_epoch,
        accumulate=settings.accumulate,
        seed=settings.seed,
        mixing=mixing,
        n_classes=facts.n_classes,
        hardware=hardware(settings),
    )


def hardware(settings: TrainSettings) -> Hardware:
    """Return where to compute.

    Raises:
        UserError: the device is not one this machine has.
    """
    device = settings.device or "cpu"
    if device not in ACCELERATORS:
        raise UserError(f"--device is {device!r}, expected one of {', '.join(ACCELERATORS)}.")
    if device != "cpu" and best_device()[0] != device:
        raise UserError(f"--device is {device!r}, and this machine has none that torch can use; leave it out.")
    return Hardware(
        accelerator=device,
        precision=settings.precision or "32-true",
        compile_backend="inductor" if settings.compile else None,
    )


def optimization(settings: TrainSettings, plan: Plan) -> Optimization:
    """Return the optimizer's settings in steps."""
    peak = settings.lr or 0.0
    schedule = CosineWarmup(
        peak=peak,
        horizon=(settings.schedule_epochs or 1) * plan.steps_per_epoch,
        warmup=round((settings.warmup_epochs or 0) * plan.steps_per_epoch),
        start=peak * START_LR,
        floor=settings.min_lr or 0.0,
    )
    return Optimization(
        schedule,
        weight_decay=settings.weight_decay,
        clip=settings.clip or None,
        average_decay=settings.average or None,
    )


def check_plan(settings: TrainSettings, facts: Facts) -> list[str]:
    """Return remarks on plans that will run but may disappoint."""
    remarks = []
    batch = (settings.batch_size or 1) * settings.accumulate
    steps = steps_per_epoch(facts, settings)
    if batch > facts.n_train:
        remarks.append(
            f"a step takes {batch} images and there are {facts.n_train}: images repeat within a step; "
            "a smaller --batch-size is better"
        )
    elif steps < FEW_STEPS:
        remarks.append(f"only {steps} steps an epoch: a smaller --batch-size or more --epochs may train better")
    if settings.warmup_epochs is not None and settings.warmup_epochs >= (settings.epochs or 1):
        remarks.append("the warm-up lasts as long as the run: the learning rate never comes down")
    return remarks
