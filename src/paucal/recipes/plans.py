"""Settings turned into what the trainer is told."""

import re
import time

from paucal.data.mixing import Mixing
from paucal.recipes.facts import Facts, best_device
from paucal.recipes.processes import launched_shape
from paucal.recipes.rules_length import effective_batch, processes, steps_per_epoch
from paucal.recipes.settings import TrainSettings
from paucal.training import CosineWarmup, Hardware, LaggingEpochs, Optimization, Plan
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
        deadline=None if settings.time_limit is None else time.monotonic() + seconds_of(settings.time_limit),
        hardware=hardware(settings),
    )


UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def seconds_of(duration: str) -> float:
    """Return the seconds of a duration such as "45m", "8h", "1d12h" or "1:30:00" (hours first).

    Raises:
        UserError: it is not a duration above 0.

    Example:
        >>> seconds_of("1d12h"), seconds_of("1.5h"), seconds_of("0:45:30")
        (129600.0, 5400.0, 2730.0)
    """
    if re.fullmatch(r"(\d+(\.\d+)?[dhms])+", duration):
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", duration)
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    elif re.fullmatch(r"\d+:\d{2}:\d{2}", duration):
        hours, minutes, rest = map(int, duration.split(":"))
        seconds = float(3600 * hours + 60 * minutes + rest)
    else:
        seconds = 0.0
    if seconds <= 0:
        raise UserError(f"--time-limit is {duration!r}, expected a time such as 45m, 8h, 1d12h or 1:30:00.")
    return seconds


def hardware(settings: TrainSettings) -> Hardware:
    """Return where to compute.

    Raises:
        UserError: the device is not one this machine has, or a setting does not go with the number of devices or with
            another one.
    """
    device = settings.device or "cpu"
    if device not in ACCELERATORS:
        raise UserError(f"--device is {device!r}, expected one of {', '.join(ACCELERATORS)}.")
    if device != "cpu" and best_device()[0] != device:
        raise UserError(f"--device is {device!r}, and this machine has none that torch can use; leave it out.")
    launched, wanted = launched_shape(), (settings.devices or 1, settings.nodes or 1)
    if launched is None and wanted[1] > 1:
        raise UserError(f"--nodes is {wanted[1]}, and nothing has started the other machines: start with torchrun.")
    if launched is not None and wanted != launched:
        raise UserError(
            f"--devices {wanted[0]} and --nodes {wanted[1]} are not what the launcher has started "
            f"({launched[0]} on each of {launched[1]}): leave them out."
        )
    _check_strategy(settings)
    _check_sync(settings)
    return Hardware(
        accelerator=device,
        devices=settings.devices or 1,
        nodes=settings.nodes or 1,
        strategy=settings.strategy or "auto",
        precision=settings.precision or "32-true",
        compile_backend="inductor" if settings.compile else None,
    )


def _check_strategy(settings: TrainSettings) -> None:
    strategy = settings.strategy
    if strategy in (None, "auto"):
        return
    if processes(settings) == 1:
        raise UserError(
            f"--strategy {strategy} says how several devices share a model and this run has one: leave it out, or give "
            "--devices 2 or more."
        )
    if strategy == "fsdp" and settings.precision == "16-mixed":
        raise UserError(
            "--precision is 16-mixed, which does not go with --strategy fsdp: use bf16-mixed or 32-true, or "
            "--strategy ddp."
        )


def _check_sync(settings: TrainSettings) -> None:
    if settings.sync_bn and processes(settings) > 1 and settings.device != "cuda":
        raise UserError(
            f"--sync-bn: torch joins the statistics of batch norms on GPUs only and --device is "
            f"{settings.device or 'cpu'}: leave it out, or give --devices 1."
        )


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


def check_plan(settings: TrainSettings, facts: Facts) -> list[str]:
    """Return remarks on plans that will run but may disappoint."""
    remarks = []
    batch = effective_batch(settings)
    steps = steps_per_epoch(facts, settings)
    if settings.sync_bn and processes(settings) == 1:
        remarks.append("--sync-bn changes nothing in a run on one device")
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
