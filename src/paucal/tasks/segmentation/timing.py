"""How long a run takes on this machine: steps and looks are tried before a length is planned."""

import time
from dataclasses import dataclass, replace
from functools import partial

import torch

from paucal.cores import slowdown
from paucal.objectives.base import Objective
from paucal.runner.clock import duration, start_time
from paucal.runner.time_budget import seconds_of, suit_threads, trial_steps
from paucal.runner.trainer_inputs import trainer_plan
from paucal.tasks.segmentation.assembly import (
    WARMUP,
    SegmentationSetup,
    fast_inference,
    full_inference,
)
from paucal.tasks.segmentation.loaders import train_loader
from paucal.tasks.segmentation.scores import Tally
from paucal.tasks.segmentation.validation import count_pixels
from paucal.training import Plan, TimePlan
from paucal.types import Batch, Progress, UserError
from paucal.wording import counted

STEPS, LONGEST = 6, 15.0  # that are timed after one that is not; seconds after which fewer do
SLOWER = 1.05  # clipping, records and saved states, which a bare step lacks
LOOKS = 10  # epochs that a run should have, however short it is
LONGER = 10  # times the planned length that a run may have where steps become quicker
CLOSING = 8.0  # seconds that pictures and the page take, and the beginning of the training


@dataclass(frozen=True)
class Pace:
    """Seconds that parts of a run take.

    Attributes:
        step: an optimizer step.
        look: a look at one validation image.
        test: a look at one test image.
        closing: pictures and the page, and the beginning of the training.
    """

    step: float
    look: float
    test: float
    closing: float = CLOSING


def plan_for_time(setup: SegmentationSetup) -> SegmentationSetup:
    """Return a run with as many epochs as end within its time; one whose epochs are known stays as it is.

    Raises:
        UserError: there is not even time for one epoch.
    """
    settings = setup.settings
    if settings.epochs is not None or settings.time is None:
        return setup
    budget, pace = seconds_of(settings.time, "--time"), measure(setup, threads=True)
    counts = setup.data.counts()
    spent = time.monotonic() - start_time()
    room = budget - (spent + counts["test"] * pace.test + pace.closing)
    once = pace.step * counts["train"] / settings.effective_batch  # one crop of each image
    looks = counts["val"] * pace.look
    crops, epochs = fill_time(room, once, looks, settings.crops or 1, free="crops" not in _given(setup))
    if epochs < 1:
        raise UserError(
            f"--time {settings.time} is too short: reading, one epoch and the test take about "
            f"{duration(budget - room + crops * once + looks)} on this machine; give more, fewer --crops or a smaller "
            "--img-size."
        )
    epoch = crops * once + looks
    reason = f"{settings.time}: an epoch takes about {duration(epoch)} here (a step {pace.step:.2f} s)"
    warmup = settings.warmup_epochs
    changed = replace(settings, epochs=epochs, crops=crops, warmup_epochs=WARMUP * epochs if warmup is None else warmup)
    origin = {**setup.origin, "epochs": f"auto: {reason}"}
    if warmup is None:
        origin["warmup_epochs"] = "auto: a twentieth of the epochs"
    if crops != settings.crops:
        origin["crops"] = f"auto: so that {counted(epochs, 'epoch')} {'fills' if epochs == 1 else 'fill'} the time"
    plan = trainer_plan(changed, counts["train"] * crops)
    time_plan = TimePlan(
        *(budget, time.monotonic() - start_time(), counts["test"] * pace.test + pace.closing, pace.step, looks),
        most_steps=LONGER * plan.total_steps,
        threads=torch.get_num_threads(),
    )
    whole = duration(budget - room + epochs * epoch)
    words = f"time: about {whole} in all, {counted(epochs, 'epoch')} of {duration(epoch)}"
    return replace(
        setup,
        settings=changed,
        origin=origin,
        plan=replace(plan, time=time_plan),
        remarks=(*setup.remarks, words),
        planned_at=time.monotonic(),
    )


def seconds_of_run(setup: SegmentationSetup) -> float:
    """Return how long a run whose length is known should take on this machine, by trying a few steps and looks."""
    plan, counts, pace = setup.plan, setup.data.counts(), measure(setup)
    looks = (setup.settings.epochs or 0) * counts["val"] * pace.look
    return plan.total_steps * pace.step + looks + counts["test"] * pace.test + pace.closing


def fill_time(room: float, once: float, looks: float, crops: int, free: bool) -> tuple[int, int]:
    """Return crops of each image in an epoch, and epochs, that take as much of a time as there is.

    Args:
        room: seconds for all epochs.
        once: seconds for one crop of each image.
        looks: seconds for the look at the validation images after an epoch.
        crops: as chosen from the images.
        free: whether they may be fewer or more, so that the last epoch ends with the time and not long before.

    Example:
        >>> fill_time(100.0, once=1.0, looks=1.0, crops=24, free=False)
        (24, 4)
        >>> fill_time(100.0, once=1.0, looks=1.0, crops=24, free=True)
        (9, 10)
        >>> fill_time(45.0, once=20.0, looks=3.0, crops=8, free=True)
        (2, 1)
    """
    if free:
        most = max(1, int(room / (once + looks)))
        wanted = min(most, max(LOOKS, round(room / (crops * once + looks))))
        crops = max(1, int((room / wanted - looks) / once))
    return crops, int(room / (crops * once + looks))


def _given(setup: SegmentationSetup) -> set[str]:
    """Return the settings that somebody has said."""
    return {name for name, words in setup.origin.items() if not words.startswith(("auto:", "default"))}


def measure(setup: SegmentationSetup, threads: bool = False) -> Pace:
    """Try a few steps and looks; the objective comes back as it was.

    Args:
        setup: Run of segmentation.
        threads: Whether to choose the number of threads first, where other programs use the same cores.
    """
    objective, device = setup.objective, torch.device(setup.settings.device or "cpu")
    with trial_steps(objective, device):
        step = _seconds_per_step(setup, objective, device, threads)
        look, test = _seconds_per_look(setup, device)
    return Pace(SLOWER * step, look, test, CLOSING * slowdown())


def _seconds_per_step(setup: SegmentationSetup, objective: Objective, device: torch.device, threads: bool) -> float:
    settings = setup.settings
    plan: Plan = replace(setup.plan, total_steps=STEPS + 1)
    loader = train_loader(setup, start=0, plan=plan, workers=0)
    half = torch.bfloat16 if settings.precision == "bf16-mixed" else torch.float16
    dtype = None if settings.precision in (None, "32-true") else half
    optimizer = torch.optim.AdamW([p for p in objective.parameters() if p.requires_grad], lr=0.0, fused=True)
    objective.train()
    times: list[float] = []
    begin = time.perf_counter()
    for batch in loader:
        step = partial(_pass, objective, batch.to(device), device, dtype)  # type: ignore[union-attr]
        step()
        if threads and not times:
            suit_threads(step, device)
        if (len(times) + 1) % settings.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        now = time.perf_counter()
        times.append(now - begin)
        begin = now
        if len(times) > STEPS or sum(times[1:]) > LONGEST:
            break
    counted = times[1:] or times
    return settings.accumulate * sum(counted) / len(counted)


def _pass(objective: Objective, batch: Batch, device: torch.device, dtype: torch.dtype | None) -> None:
    with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        terms = objective(batch, Progress(0, 1, 1))
    terms.total.backward()
    terms.total.item()  # waits for devices that compute beside the program


def _seconds_per_look(setup: SegmentationSetup, device: torch.device) -> tuple[float, float]:
    """Return the seconds that one image takes in validation and in the test."""
    data, settings = setup.segmented, setup.settings
    network, fed = setup.objective.deployable(), setup.card.preprocessing
    one = data.part("train")[:1].tolist()
    found = []
    for options in (fast_inference(settings), full_inference(settings)):
        begin = time.perf_counter()
        tallies: list[Tally] = count_pixels(network, data, one, fed, options, device)
        assert tallies
        found.append(time.perf_counter() - begin)
    return found[0], found[1]
