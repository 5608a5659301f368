"""Derive the trainer's plan and hardware from the settings of a run, and check that the run fits in memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from timm.layers.norm_act import convert_sync_batchnorm
from torch import nn

from paucal.backbones.cost import FLOAT_BYTES, image_cost
from paucal.backbones.sizing import fit_to_image_size
from paucal.backbones.spec import BackboneSpec
from paucal.cores import count_usable_cores
from paucal.data.sampler import steps_per_epoch
from paucal.data.views.augmentation import Mixing
from paucal.memory import is_out_of_memory, read_available_memory
from paucal.models.trained import DEVICES
from paucal.rules.resolve import best_device
from paucal.runner.processes import launched_process_counts
from paucal.runner.time_budget import parse_duration
from paucal.settings.shared import JobSettings
from paucal.training import Hardware, Plan
from paucal.types import UserError
from paucal.wording import counted

M = TypeVar("M", bound=nn.Module)
MIN_STEPS_PER_EPOCH = 5  # a remark is printed if an epoch has fewer steps
GIB = 2**30
# Memory of weights, gradients and optimizer state, as a multiple of the memory of the weights, by optimizer
MEMORY_FACTORS = {"adamw": 4, "sgd": 3, "lars": 3}
SMALL_STEP_PIXELS = 16 * 224 * 224  # forward passes with at most this number of pixels are not checked
MAX_STEP_IMAGES = 1 << 20  # maximum number of images per optimizer step


def trainer_plan(settings: JobSettings, n_train: int, mixing: Mixing | None = None, n_classes: int = 0) -> Plan:
    """Return the plan of a run, which has the length of one epoch before the number of epochs is known."""
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
    launched, devices, nodes = launched_process_counts(), settings.devices, settings.nodes
    if launched is not None and (devices, nodes) != launched:
        raise UserError(
            f"--devices is {devices} and --nodes is {nodes}, but the launcher started processes for --devices "
            f"{launched[0]} and --nodes {launched[1]}: remove --devices and --nodes."
        )
    if launched is None:
        if nodes > 1:
            raise UserError(
                f"--nodes is {nodes}, but the processes on the other machines were not started: start the command "
                "with torchrun."
            )
        if device == "cpu":
            available, noun = max(2, count_usable_cores()), "processor core"
        else:
            available, noun = torch.cuda.device_count() if device == "cuda" else 1, f"{device} device"
        if devices > available:
            raise UserError(
                f"--devices is {devices}, but this machine has {counted(available, noun)}: give {available} or less."
            )
    return Hardware(
        accelerator=device,
        devices=devices,
        nodes=nodes,
        strategy=_lightning_strategy(settings),
        precision=settings.precision,
        compile_backend="inductor" if settings.compile else None,
        hang_seconds=None if settings.hang_after is None else parse_duration(settings.hang_after, "--hang-after"),
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


def check_memory(settings: JobSettings, spec: BackboneSpec, views: float = 1.0) -> list[str]:
    """Refuse a run whose steps cannot fit in memory; return a remark if a step needs more than half of the memory.

    The estimate, for which the model is not built, is a lower bound: it counts weights, gradients, optimizer state, and
    the activations of a forward pass. `views` is the number of pixels in all views of an image, divided by the number
    of pixels of an image of the backbone's size.
    """
    check_step_size(settings.effective_batch)
    batch_size = 1 if settings.batch_size == "auto" else settings.batch_size_or_1
    pixels = spec.image_size[0] * spec.image_size[1]
    if batch_size * pixels * views <= SMALL_STEP_PIXELS and not spec.arguments:
        return []
    arguments = fit_to_image_size(spec.name, spec.image_size, spec.arguments).arguments
    cost = image_cost(spec.name, spec.image_size, {**spec.arguments, **arguments})
    if cost is None:
        return []
    activation_divisor = 1 if settings.precision == "32-true" else 2
    weight_factor = MEMORY_FACTORS[getattr(settings, "optimizer", "adamw")]
    weight_bytes = weight_factor * FLOAT_BYTES * cost.parameters
    image_bytes = round(views * cost.activation_bytes / activation_divisor)
    local_processes = 1 if settings.device == "cuda" else settings.devices
    on_gpu = settings.device == "cuda" and torch.cuda.is_available()
    available_bytes = (torch.cuda.mem_get_info()[1] if on_gpu else read_available_memory()) // local_processes
    needed_bytes = weight_bytes + batch_size * image_bytes
    if needed_bytes <= available_bytes // 2:
        return []
    height, width = spec.image_size
    step = f"a step of {counted(batch_size, 'image')} of {height}x{width} pixels"
    text = f"{step} needs at least {needed_bytes / GIB:.3g} GiB of memory with {spec.name}"
    available_text = f"{available_bytes / GIB:.3g} GiB{' for each process' if local_processes > 1 else ''}"
    if needed_bytes <= available_bytes:
        return [f"{text}, of {available_text}"]
    largest_batch = (available_bytes - weight_bytes) // max(image_bytes, 1)
    advice = f"give --batch-size {largest_batch} or less, or lower" if largest_batch >= 1 else "lower"
    raise UserError(f"{text}, but this machine has {available_text}: {advice} --img-size, or choose a smaller --model.")


@contextmanager
def explain_memory_errors() -> Iterator[None]:
    """Raise a UserError if memory runs out while networks are built, since `check_memory` does not count the heads."""
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        raise UserError(
            "the networks and the heads of their losses do not fit in this machine's memory: choose a smaller --model "
            "or narrower heads."
        ) from problem


@contextmanager
def seeded_random_weights(seed: int) -> Iterator[None]:
    """Within the block, draw the random weights of networks from a seed; raise a UserError if memory runs out.

    The weights do not depend on earlier random numbers, and later random numbers do not depend on the weights.
    """
    with torch.random.fork_rng(devices=[]), explain_memory_errors():
        torch.manual_seed(seed)
        yield


def check_step_size(images: int) -> None:
    """Refuse optimizer steps of more than `MAX_STEP_IMAGES` images."""
    if images > MAX_STEP_IMAGES:
        raise UserError(
            f"an optimizer step would take {images:,} images (--batch-size times --accumulate times the processes), "
            f"expected {MAX_STEP_IMAGES:,} at most: lower --batch-size or --accumulate."
        )
