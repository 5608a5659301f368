"""Derive the trainer's plan and hardware from the settings of a run, and check the settings."""

import time
from typing import TypeVar

import torch
from timm.layers.norm_act import convert_sync_batchnorm
from torch import nn

from paucal.cores import count_usable_cores
from paucal.data.sampler import steps_per_epoch
from paucal.data.views.augmentation import Mixing
from paucal.models.devices import DEVICES
from paucal.rules.resolve import best_device
from paucal.runner.processes import launched_process_counts
from paucal.runner.time_budget import parse_duration
from paucal.settings.shared import JobSettings
from paucal.training import Hardware, Plan
from paucal.types import UserError
from paucal.wording import counted

M = TypeVar("M", bound=nn.Module)
MIN_STEPS_PER_EPOCH = 5  # a remark is printed if an epoch has fewer steps


def trainer_plan(settings: JobSettings, n_train: int, mixing: Mixing | None = None, n_classes: int = 0) -> Plan:
    """Return the plan of a run: length, seed, time limit and hardware.

    Before the number of epochs is known, the plan has the length of one epoch.
    """
    per_epoch = steps_per_epoch(n_train, settings.effective_batch)
    return Plan(
        total_steps=per_epoch * settings.epochs_or_1,
        steps_per_epoch=per_epoch,
        accumulate=settings.accumulate,
        seed=settings.seed,
        mixing=mixing,
        n_classes=n_classes,
        deadline=None if settings.time_limit is None else time.monotonic() + parse_duration(settings.time_limit),
        hardware=hardware(settings),
    )


def hardware(settings: JobSettings) -> Hardware:
    """Return the hardware to train on, after checking that it is available."""
    device = settings.device
    if device not in DEVICES:
        raise UserError(f"--device is {device!r}, expected one of {', '.join(DEVICES)}.")
    if device != "cpu" and best_device()[0] != device:
        raise UserError(f"--device is {device!r}, but torch finds no such device on this machine: remove --device.")
    launched, requested = launched_process_counts(), (settings.devices, settings.nodes)
    if launched is None and requested[1] > 1:
        raise UserError(
            f"--nodes is {requested[1]}, but the processes on the other machines were not started: start the command "
            "with torchrun."
        )
    if launched is not None and requested != launched:
        raise UserError(
            f"--devices is {requested[0]} and --nodes is {requested[1]}, but the launcher started processes "
            f"for --devices {launched[0]} and --nodes {launched[1]}: remove --devices and --nodes."
        )
    if launched is None:
        _check_count(device, requested[0])
    return Hardware(
        accelerator=device,
        devices=settings.devices,
        nodes=settings.nodes,
        strategy=_lightning_strategy(settings),
        precision=settings.precision,
        compile_backend="inductor" if settings.compile else None,
        hang_seconds=None if settings.hang_after is None else parse_duration(settings.hang_after, "--hang-after"),
    )


def _check_count(device: str, requested: int) -> None:
    if device == "cpu":
        available, noun = max(2, count_usable_cores()), "processor core"
    else:
        available, noun = torch.cuda.device_count() if device == "cuda" else 1, f"{device} device"
    if requested > available:
        raise UserError(
            f"--devices is {requested}, but this machine has {counted(available, noun)}: give {available} or less."
        )


def _lightning_strategy(settings: JobSettings) -> str:
    """Return the strategy by Lightning's name; one process has none, which Lightning calls "auto"."""
    strategy = settings.strategy
    if strategy is None or strategy == "auto":
        return "auto"
    if settings.processes == 1:
        raise UserError(
            f"--strategy {strategy} is for several devices, but this run uses one device: remove --strategy, or give "
            "--devices 2 or more."
        )
    if strategy == "fsdp" and settings.precision == "16-mixed":
        raise UserError(
            "--precision 16-mixed is not supported for --strategy fsdp: use bf16-mixed or 32-true, or --strategy ddp."
        )
    return strategy


def check_sync_bn(settings: JobSettings) -> None:
    """Refuse synchronised batch norms on devices where torch does not support them."""
    if getattr(settings, "sync_bn", False) and settings.device != "cuda":
        raise UserError(
            f"--sync-bn: torch synchronises batch norms only on GPUs, but --device is {settings.device}: remove "
            "--sync-bn."
        )


def with_synced_norms(settings: JobSettings, module: M) -> M:
    """Return the module with synchronised batch norms if `--sync-bn` is given and the run has several processes."""
    if not getattr(settings, "sync_bn", False) or settings.processes == 1:
        return module
    check_sync_bn(settings)
    return convert_sync_batchnorm(module)  # type: ignore[return-value]


def check_rates(settings: JobSettings) -> None:
    """Refuse a learning-rate schedule whose settings contradict each other; do not call this for resumed runs."""
    peak, floor, warmup, epochs = settings.lr, settings.min_lr, settings.warmup_epochs, settings.epochs
    if peak is not None and floor is not None and floor > peak:
        raise UserError(
            f"--min-lr is {floor:g}, above --lr {peak:g}: the learning rate would rise instead of fall; "
            "give a smaller --min-lr or a higher --lr."
        )
    if warmup is not None and epochs is not None and warmup > epochs:
        raise UserError(
            f"--warmup-epochs is {warmup:g} and --epochs {epochs}: the learning rate would never reach its peak; give "
            "fewer --warmup-epochs or more --epochs."
        )


def length_warnings(settings: JobSettings, n_train: int) -> list[str]:
    """Return warnings about batches larger than the training set, few steps per epoch, or a warm-up of all epochs."""
    remarks = []
    batch = settings.effective_batch
    steps = steps_per_epoch(n_train, batch)
    if batch > n_train:
        remarks.append(
            f"a step takes {counted(batch, 'image')}, but there are only {n_train} training images, so images repeat "
            "within a step: give a smaller --batch-size"
        )
    elif steps < MIN_STEPS_PER_EPOCH:
        remarks.append(
            f"an epoch has only {counted(steps, 'step')}: a smaller --batch-size or more --epochs may train better"
        )
    if settings.warmup_epochs is not None and settings.warmup_epochs >= settings.epochs_or_1:
        remarks.append("the warm-up is at least as long as the run, so the learning rate never falls")
    return remarks
