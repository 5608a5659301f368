"""Timing of training steps on this machine, before the length of a run is planned."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import torch

from paucal.objectives import Objective
from paucal.runner.time_budget import suit_threads, trial_steps
from paucal.tasks.classification.assembly import TrainingSetup
from paucal.tasks.classification.loaders import train_loader
from paucal.types import Batch, Progress

MAX_IMAGES = 32  # images of a timed batch
TIMED_STEPS = 2  # after one warm-up step
OVERHEAD = 1.08  # factor for the optimizer, the moving average and records, which a timed step lacks


def seconds_per_image(setup: TrainingSetup, threads: bool = False) -> float:
    """Return the training seconds per image: reading, augmentation, forward and backward pass.

    Args:
        setup: Setup of the run.
        threads: Whether to choose the number of threads first, if other programs use the same cores.
    """
    settings, objective = setup.settings, setup.objective
    size = min(settings.images_per_pass, MAX_IMAGES, max(2, len(setup.data.part("train"))))
    device = torch.device(settings.device or "cpu")
    alone = replace(settings, batch_size=size, accumulate=1, workers=0)
    plan = replace(setup.plan, total_steps=TIMED_STEPS + 1, accumulate=1)
    loader = train_loader(setup.data, setup.card.preprocessing, alone, plan, objective.data_request, start=0)
    return OVERHEAD * seconds_per_batch(objective, loader, device, settings.precision, threads) / size


def seconds_per_batch(
    objective: Objective, loader: Iterable[Batch], device: torch.device, precision: str | None, threads: bool = False
) -> float:
    """Return the seconds of a forward and backward pass over a batch; the objective is restored afterwards.

    Args:
        objective: Objective to train.
        loader: Loader of a few batches of one size; the first is not timed.
        device: Device to compute on.
        precision: Precision, as in the settings of a run.
        threads: Whether to choose the number of threads first, if other programs use the same cores.
    """
    dtype = None if precision == "32-true" else torch.bfloat16 if precision == "bf16-mixed" else torch.float16
    times: list[float] = []
    with trial_steps(objective.train(), device):
        start_time = time.perf_counter()
        for batch in loader:
            step = partial(_step, objective, batch.to(device), device, dtype)
            step()
            if threads and not times:
                suit_threads(step, device)
            now = time.perf_counter()
            times.append(now - start_time)
            start_time = now
            if len(times) > TIMED_STEPS:
                break
    return min(times[1:] or times)


def _step(objective: torch.nn.Module, batch: Batch, device: torch.device, dtype: torch.dtype | None) -> None:
    with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        terms = objective(batch, Progress(0, 1, 1))
    terms.total.backward()
    terms.total.item()  # waits for asynchronous devices


def sides(native: Sequence[int], fixed: bool) -> list[list[int]]:
    """Return the image sizes to try for tuning, largest first.

    Args:
        native: Side, or height and width, that the weights were trained at, in pixels.
        fixed: Whether only the native size is allowed.
    """
    if fixed or len(native) > 1:
        return [list(native)]
    smaller = [round(share * native[0] / 32) * 32 for share in (0.72, 0.57)]
    return [[native[0]], *([side] for side in smaller if 96 <= side < native[0])]
